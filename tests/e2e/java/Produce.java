import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produce BOOTSTRAP TOPIC: lines KEY:VALUE from standard input become records, by the Java client as it comes.
 * For each it prints KEY:PARTITION when the broker has it.
 *
 * Produce.class beside it is this file compiled (javac --release 17 -cp kafka-clients.jar): the JDK of the tests'
 * Kafka has no compiler.
 */
public final class Produce {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                int colon = line.indexOf(':');
                String key = line.substring(0, colon);
                ProducerRecord<String, String> record = new ProducerRecord<>(args[1], key, line.substring(colon + 1));
                System.out.println(key + ":" + producer.send(record).get().partition());
            }
        }
    }
}

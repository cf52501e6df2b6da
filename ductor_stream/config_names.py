"""Names that a configuration may use: librdkafka's and libpq's options, as their own documentation lists them.

They stand here so that a misspelt name is refused before anything is opened, in a process that needs only one of
the two drivers. A test compares them with the drivers that are installed.
"""

from __future__ import annotations

_KAFKA = """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size bootstrap.servers
    broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.id
    client.rack compression.codec compression.level compression.type connections.max.idle.ms
    consume.callback.max.messages coordinator.query.interval.ms debug delivery.report.only.error
    delivery.timeout.ms enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence
    enable.metrics.push enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
    fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol
    group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location https.ca.pem
    isolation.level linger.ms log.connection.close log.thread.name log_level max.in.flight
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method
    oauth_cb offset.store.path offset.store.sync.interval.ms partition.assignment.strategy partitioner
    plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
    queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
    reconnect.backoff.ms request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
    security.protocol session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
KAFKA_OPTIONS = frozenset(_KAFKA.split())
"""Options of librdkafka 2.16 that are values (callbacks and pointers are not), and the one callback that can be named."""

_DATABASE = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name
    gssdelegation gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle
    keepalives_interval krbsrvname load_balance_hosts max_protocol_version min_protocol_version oauth_client_id
    oauth_client_secret oauth_issuer oauth_scope options passfile password port replication require_auth
    requirepeer scram_client_key scram_server_key service ssl_max_protocol_version ssl_min_protocol_version
    sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslkeylogfile sslmode sslnegotiation sslpassword
    sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
DATABASE_OPTIONS = frozenset(_DATABASE.split())
"""Options of libpq 18."""

_REGISTRY = """
    basic.auth.user.info bearer.auth.client.id bearer.auth.client.secret
    bearer.auth.credentials.source bearer.auth.identity.pool.id bearer.auth.issuer.endpoint.query bearer.auth.issuer.endpoint.url
    bearer.auth.logical.cluster bearer.auth.scope bearer.auth.token cache.capacity cache.latest.ttl.sec max.retries
    proxy retries.max.wait.ms retries.wait.ms ssl.ca.location ssl.certificate.location ssl.key.location
    ssl.key.password timeout url
"""
REGISTRY_OPTIONS = frozenset(_REGISTRY.split())
"""Options of Confluent's schema registry client."""

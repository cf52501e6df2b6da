----------------------------- MODULE Partition -----------------------------
(***************************************************************************)
(* Commit, dispatch and ownership of one run partition, with two owners    *)
(* that crash, freeze, and do not hear how their commits ended.            *)
(* docs/model.md maps each action to the function that it stands for.      *)
(*                                                                         *)
(* Every action is one step that the real system takes at once: one SQL    *)
(* statement, one call of the producer, one report of the broker. A frozen *)
(* owner is one that takes no step while others do.                        *)
(*                                                                         *)
(* Bug seeds a fault; "none" is the protocol as it is.                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Owners, BatchMax, Disruptions, Bug

(* What lies in the inbound topic. The third record is the first, sent twice: *)
(* its id tells. Of "b" nothing but its offset tells that it was applied.     *)
Log == << [id |-> "a", named |-> TRUE], [id |-> "b", named |-> FALSE], [id |-> "a", named |-> TRUE] >>
Ids == {Log[i].id : i \in DOMAIN Log}

VARIABLES
    db,        \* the rows of the partition and of its runs
    own,       \* what each process has in memory
    assigned,  \* whom the consumer group gives the partition
    wire,      \* commits that Postgres has not executed yet
    flight,    \* records that the broker has not answered for
    topic,     \* records that are in their topic
    left,      \* how many things may still go wrong
    zombie     \* ghost: a commit landed that was not the last owner's, or not where the last one left off

vars == <<db, own, assigned, wire, flight, topic, left, zombie>>

Idle == [pc |-> "idle", epoch |-> 0, offset |-> 0, version |-> 0, seq |-> 0, dropped |-> 0,
         rows |-> {}, failed |-> {}, batch |-> <<>>, answer |-> "none", snapshot |-> {}]

Init ==
    /\ db = [epoch |-> 0, offset |-> 0, version |-> 0, applied |-> [id \in Ids |-> 0], seq |-> 0, outbox |-> {}]
    /\ own = [o \in Owners |-> Idle]
    /\ assigned \in Owners
    /\ wire = {} /\ flight = {} /\ topic = {}
    /\ left = Disruptions
    /\ zombie = FALSE

Max(a, b) == IF a > b THEN a ELSE b

Applied == {id \in Ids : db.applied[id] > 0}

(* A row of the dispatcher: what of it is still open. It is done when nothing is. *)
Records(o, epoch, seq, ids) == {[who |-> o, epoch |-> epoch, seq |-> seq, id |-> id] : id \in ids}

(* Reports for a tenure that is over have nobody to tell: of its records only what they say matters, if they *)
(* are not in their topic already. `lost` never arrive.                                                     *)
Orphaned(o, lost) ==
    LET mine == {f \in flight : f.who = o}
        ids == {f.id : f \in mine \ lost} \ topic
    IN  (flight \ mine) \cup {[who |-> "nobody", epoch |-> 0, seq |-> 0, id |-> id] : id \in ids}

(* The last sequence number up to which everything is done, without a gap. *)
Confirmed(o) ==
    LET me == own[o]
        open == {row.seq : row \in {r \in me.rows : r.open # {}}}
        done == {row.seq : row \in me.rows} \ open
        prefix == {s \in done : \A gap \in open : s < gap}
        all == {row.seq : row \in me.rows}
        largest(S) == CHOOSE s \in S : \A t \in S : t <= s
    IN  CASE Bug = "drop_when_sent" /\ all # {} -> largest(all)
          [] Bug = "last_ack_confirms_all" /\ done # {} -> largest(done)
          [] OTHER -> IF prefix = {} THEN me.dropped ELSE Max(me.dropped, largest(prefix))

----------------------------------------------------------------------------
(* Taking the partition *)

(* The statement that raises the epoch is sent; it may wait for a lock. *)
BeginTake(o) ==
    /\ own[o].pc = "idle" /\ assigned = o
    /\ own' = [own EXCEPT ![o] = [Idle EXCEPT !.pc = "taking", !.snapshot = IF Bug = "read_in_the_raising_statement" THEN db.outbox ELSE {}]]
    /\ UNCHANGED <<db, assigned, wire, flight, topic, left, zombie>>

RaiseEpoch(o) ==
    /\ own[o].pc = "taking"
    /\ db' = [db EXCEPT !.epoch = @ + 1]
    /\ own' = [own EXCEPT ![o].pc = "raised", ![o].epoch = db.epoch + 1]
    /\ UNCHANGED <<assigned, wire, flight, topic, left, zombie>>

(* In a new statement: offsets, outbox. What is in the outbox is sent again. *)
ReadAndRedrive(o) ==
    LET me == own[o]
        outbox == IF Bug = "read_in_the_raising_statement" THEN me.snapshot ELSE db.outbox
        redriven == IF Bug = "no_redrive" THEN {} ELSE outbox
        first == IF redriven = {} THEN db.seq ELSE (CHOOSE s \in {r.seq : r \in redriven} : \A r \in redriven : s <= r.seq) - 1
    IN  /\ me.pc = "raised"
        /\ IF db.epoch # me.epoch
           THEN /\ own' = [own EXCEPT ![o] = Idle]      \* overtaken between the two statements
                /\ UNCHANGED flight
           ELSE /\ own' = [own EXCEPT ![o] = [Idle EXCEPT !.pc = "owns", !.epoch = me.epoch, !.offset = db.offset,
                                              !.version = db.version, !.seq = db.seq, !.dropped = first,
                                              !.rows = {[seq |-> r.seq, open |-> r.ids] : r \in redriven}]]
                /\ flight' = flight \cup UNION {Records(o, me.epoch, r.seq, r.ids) : r \in redriven}
        /\ UNCHANGED <<db, assigned, wire, topic, left, zombie>>

----------------------------------------------------------------------------
(* A turn: take inputs, tick, commit, dispatch *)

(* Ids of the first `count` inputs from the owner's offset on that are to be applied, once each. *)
Fresh(o, count) ==
    LET range == (own[o].offset + 1)..(own[o].offset + count)
        known(i) == /\ Log[i].named
                    /\ Bug # "no_dedupe"
                    /\ (Log[i].id \in Applied \/ \E j \in range : j < i /\ Log[j].id = Log[i].id)
    IN  {i \in range : ~known(i)}

TickAndSend(o, count) ==
    LET me == own[o]
        inputs == Fresh(o, count)
        ids == {Log[i].id : i \in inputs} \cup me.failed
        seq == IF ids = {} THEN me.seq ELSE me.seq + 1
        batch == [who |-> o, epoch |-> me.epoch, previous |-> me.offset, next |-> me.offset + count,
                  expected |-> me.version, inputs |-> inputs, seq |-> seq, ids |-> ids, confirmed |-> Confirmed(o)]
    IN  /\ me.pc = "owns"
        /\ me.offset + count <= Len(Log)
        /\ count > 0 \/ me.failed # {} \/ Confirmed(o) > me.dropped
        /\ own' = [own EXCEPT ![o].pc = "committing", ![o].batch = batch, ![o].answer = "none"]
        /\ wire' = wire \cup {batch}
        /\ flight' = IF Bug = "dispatch_first" THEN flight \cup Records(o, me.epoch, seq, ids) ELSE flight
        /\ db' = IF Bug = "offsets_first" THEN [db EXCEPT !.offset = Max(@, batch.next)] ELSE db
        /\ UNCHANGED <<assigned, topic, left, zombie>>

Fenced(c) ==
    IF Bug = "no_fence" THEN FALSE
    ELSE \/ c.epoch # db.epoch
         \/ c.previous # db.offset /\ Bug \notin {"offsets_first", "offsets_apart", "resubmitted_blindly"}

(* Postgres executes a commit, whoever still waits for its answer. *)
Execute(c) ==
    LET refused == Fenced(c) \/ (c.expected # db.version /\ Bug # "resubmitted_blindly")
        mine == own[c.who].pc = "committing" /\ own[c.who].batch = c
        count(id) == Cardinality({i \in c.inputs : Log[i].id = id})
        kept == {row \in db.outbox : row.seq > c.confirmed}
    IN  /\ c \in wire
        /\ wire' = wire \ {c}
        /\ own' = IF mine THEN [own EXCEPT ![c.who].answer = IF refused THEN "refused" ELSE "landed"] ELSE own
        /\ IF refused
           THEN UNCHANGED <<db, zombie>>
           ELSE /\ zombie' = (zombie \/ c.epoch # db.epoch \/ c.expected # db.version
                              \/ (c.previous # db.offset /\ Bug # "offsets_first"))
                /\ db' = [db EXCEPT !.offset = IF Bug = "offsets_apart" THEN @ ELSE c.next,
                                    !.version = c.expected + Cardinality(c.inputs),
                                    !.applied = [id \in Ids |-> @[id] + count(id)],
                                    !.seq = Max(@, c.seq),
                                    !.outbox = kept \cup (IF c.ids = {} THEN {} ELSE {[seq |-> c.seq, ids |-> c.ids]})]
        /\ UNCHANGED <<assigned, flight, topic, left>>

(* Remember what has landed, and only then dispatch it. *)
DispatchLanded(o) ==
    LET me == own[o]
        c == me.batch
    IN  /\ me.pc = "committing" /\ me.answer = "landed"
        /\ own' = [own EXCEPT ![o].pc = IF Bug = "offsets_apart" THEN "storing" ELSE "owns",
                              ![o].offset = c.next, ![o].version = c.expected + Cardinality(c.inputs),
                              ![o].seq = c.seq, ![o].dropped = c.confirmed, ![o].failed = @ \ c.ids,
                              ![o].batch = IF Bug = "offsets_apart" THEN c ELSE <<>>, ![o].answer = "none",
                              ![o].rows = {r \in @ : r.seq > c.confirmed}
                                          \cup (IF c.ids = {} THEN {} ELSE {[seq |-> c.seq, open |-> c.ids]})]
        /\ flight' = IF Bug = "dispatch_first" THEN flight ELSE flight \cup Records(o, me.epoch, c.seq, c.ids)
        /\ UNCHANGED <<db, assigned, wire, topic, left, zombie>>

(* Only with the bug "offsets_apart": the offset is stored by a statement of its own. *)
StoreOffset(o) ==
    /\ own[o].pc = "storing"
    /\ db' = [db EXCEPT !.offset = own[o].batch.next]
    /\ own' = [own EXCEPT ![o].pc = "owns", ![o].batch = <<>>]
    /\ UNCHANGED <<assigned, wire, flight, topic, left, zombie>>

(* Fenced: everything in memory goes; the partition is taken anew if it is still assigned. *)
LetGo(o) ==
    /\ own[o].pc = "committing" /\ own[o].answer = "refused"
    /\ own' = [own EXCEPT ![o] = Idle]
    /\ flight' = Orphaned(o, {})
    /\ UNCHANGED <<db, assigned, wire, topic, left, zombie>>

----------------------------------------------------------------------------
(* The broker *)

Answered(f) ==
    IF f.who \in Owners
    THEN [own EXCEPT ![f.who].rows = {IF r.seq = f.seq THEN [r EXCEPT !.open = @ \ {f.id}] ELSE r : r \in @}]
    ELSE own

Deliver(f) ==
    /\ f \in flight
    /\ flight' = flight \ {f}
    /\ topic' = topic \cup {f.id}
    /\ own' = Answered(f)
    /\ UNCHANGED <<db, assigned, wire, left, zombie>>

----------------------------------------------------------------------------
(* What may go wrong *)

(* The broker's word is "not taken", whether the record landed or not. *)
Undelivered(f) ==
    /\ left > 0 /\ left' = left - 1
    /\ f \in flight
    /\ flight' = flight \ {f}
    /\ topic' \in {topic, topic \cup {f.id}}
    /\ own' = IF f.who \in Owners /\ Bug # "failure_counts_as_done"
              THEN [Answered(f) EXCEPT ![f.who].failed = @ \cup {f.id}] ELSE Answered(f)
    /\ UNCHANGED <<db, assigned, wire, zombie>>

(* The process ends; what it had produced is lost, or still arrives. *)
Crash(o) ==
    /\ left > 0 /\ left' = left - 1
    /\ own[o].pc # "idle"
    /\ own' = [own EXCEPT ![o] = Idle]
    /\ \E lost \in SUBSET {f \in flight : f.who = o} : flight' = Orphaned(o, lost)
    /\ UNCHANGED <<db, assigned, wire, topic, zombie>>

(* The answer to a commit is lost: it has landed, it never will, or it does later. *)
OutcomeUnknown(o) ==
    /\ left > 0 /\ left' = left - 1
    /\ own[o].pc = "committing"
    /\ \/ own[o].batch \in wire /\ wire' = wire \ {own[o].batch}
       \/ UNCHANGED wire
    /\ own' = CASE Bug = "unknown_is_landed" -> [own EXCEPT ![o].answer = "landed"]
                [] Bug = "resubmitted_blindly" -> [own EXCEPT ![o].answer = "again"]
                [] OTHER -> [own EXCEPT ![o] = Idle]
    /\ flight' = IF own'[o].pc = "idle" THEN Orphaned(o, {}) ELSE flight
    /\ UNCHANGED <<db, assigned, topic, zombie>>

(* Only with the bug "resubmitted_blindly". *)
Resubmit(o) ==
    /\ own[o].pc = "committing" /\ own[o].answer = "again"
    /\ wire' = wire \cup {own[o].batch}
    /\ own' = [own EXCEPT ![o].answer = "none"]
    /\ UNCHANGED <<db, assigned, flight, topic, left, zombie>>

(* The group gives the partition to another member; the old one hears of it, or does not. *)
Rebalance(o) ==
    /\ left > 0 /\ left' = left - 1
    /\ assigned # o
    /\ assigned' = o
    /\ UNCHANGED <<db, own, wire, flight, topic, zombie>>

----------------------------------------------------------------------------
Done == db.offset = Len(Log) /\ Applied = Ids /\ db.outbox = {} /\ wire = {} /\ flight = {}

Rest == Done /\ UNCHANGED vars

Next ==
    \/ \E o \in Owners :
        \/ BeginTake(o) \/ RaiseEpoch(o) \/ ReadAndRedrive(o)
        \/ \E count \in 0..BatchMax : TickAndSend(o, count)
        \/ DispatchLanded(o) \/ StoreOffset(o) \/ LetGo(o)
        \/ Crash(o) \/ OutcomeUnknown(o) \/ Resubmit(o) \/ Rebalance(o)
    \/ \E c \in wire : Execute(c)
    \/ \E f \in flight : Deliver(f) \/ Undelivered(f)
    \/ Rest

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Owners)

----------------------------------------------------------------------------
(* The rules (docs/architecture.md) *)

R3_VersionCheckedCommit == ~zombie /\ db.version = db.applied["a"] + db.applied["b"]

R4_CommitBeforeDispatch == topic \cup {f.id : f \in flight} \subseteq Applied

(* What is passed is applied; what is applied is in its topic, or still owed. R9 beside it: no state but Done is the last. *)
R5_NothingSwallowed ==
    /\ \A i \in 1..db.offset : Log[i].id \in Applied
    /\ \A id \in Applied : id \in topic \/ \E row \in db.outbox : id \in row.ids

R6_ExactlyOnceProgress == \A id \in Ids : db.applied[id] <= 1
=============================================================================

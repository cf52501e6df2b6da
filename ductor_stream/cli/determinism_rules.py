"""What workflow code may not reach for, by dotted name, with the reason and the remedy."""

from __future__ import annotations

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """One kind of slip. ``names`` are dotted names, each with all that is below it.

    With ``calls_only`` a name counts where it is called: its exceptions and types may be used.
    """

    code: str
    why: str
    remedy: str
    names: frozenset[str] = frozenset()
    calls_only: bool = True


def _rule(code: str, why: str, remedy: str, names: str = "", *, calls_only: bool = True) -> Rule:
    return Rule(code, why, remedy, frozenset(names.split()), calls_only)


CLOCK = _rule(
    "clock",
    "the clock says something else at each replay",
    "use run.now()",
    """
    datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today time.time time.time_ns
    time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns time.process_time time.process_time_ns
    time.thread_time time.localtime time.gmtime time.ctime
    """,
    calls_only=False,
)
SLEEP = _rule(
    "sleep",
    "it holds up every run of this owner, and starts anew at each replay",
    "await asyncio.sleep(…)",
    "time.sleep",
)
RANDOM = _rule(
    "random",
    "chance falls otherwise at each replay",
    "use run.random (run.uuid4() for ids)",
    "random secrets numpy.random os.urandom os.getrandom",
    calls_only=False,
)
UUID = _rule(
    "uuid",
    "it is another one at each replay",
    "use run.uuid4()",
    "uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 uuid.uuid8 uuid.getnode",
    calls_only=False,
)
ENVIRONMENT = _rule(
    "environment",
    "the process that replays it may have another environment",
    "read it in a step, or hand it over in the run's input",
    """
    os.environ os.environb os.getenv os.getenvb os.getpid os.getppid os.uname os.getcwd os.cpu_count os.getlogin
    sys.argv platform getpass socket.gethostname locale.getlocale
    """,
    calls_only=False,
)
OUTSIDE = _rule(
    "outside",
    "it reaches for the outside world, again at each replay, and holds up every run of this owner",
    "do this in a step: await run.step(…)",
    """
    open input io.open os shutil tempfile glob subprocess socket ssl requests httpx aiohttp urllib.request urllib3
    http.client smtplib ftplib imaplib poplib psycopg psycopg2 asyncpg sqlite3 sqlalchemy pymysql pymongo redis boto3
    botocore aioboto3 confluent_kafka aiokafka kafka grpc websockets paramiko
    """,
)
THREADS = _rule(
    "threads",
    "threads, processes and sockets end in an order that no replay repeats",
    "do this in a step: await run.step(…)",
    """
    threading multiprocessing concurrent.futures asyncio.to_thread asyncio.run asyncio.run_coroutine_threadsafe
    asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.open_connection asyncio.start_server
    asyncio.open_unix_connection asyncio.start_unix_server
    """,
)
FUTURE = _rule(
    "future",
    "nothing that is recorded completes it: a replay would wait for ever",
    "use asyncio.Event or asyncio.Queue, or await run.wait_signal(…)",
    "asyncio.Future asyncio.futures.Future",
)
HASH = _rule(
    "hash", "it differs from process to process", "use a value of your own, or hashlib", "hash id", calls_only=True
)

BY_NAME = (CLOCK, SLEEP, RANDOM, UUID, ENVIRONMENT, OUTSIDE, THREADS, FUTURE, HASH)
"""Rules that are told by a dotted name. The longest name wins."""

_ALLOWED = """
    os.path os.fspath os.sep os.linesep os.pathsep os.PathLike os.strerror socket.inet_aton socket.inet_ntoa
    random.Random
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Names below forbidden ones that are pure. ``random.Random`` without a seed is told apart where it is called."""

SET_ORDER = _rule(
    "set-order",
    "a set of strings has another order in each process (hash seed)",
    "iterate over sorted(…), or keep a list or a dict",
)
GLOBAL = _rule(
    "global",
    "what is changed outside the function is not recorded: a replay in another process does not find it",
    "keep it in a local variable, or return it from a step",
)
NOT_AWAITED = _rule(
    "not-awaited",
    "it is never awaited: nothing is dispatched",
    "await it, or make it a task: asyncio.create_task(…)",
)
STEP_CALL = _rule(
    "step-call", "a step that is called directly would run again at each replay", "await run.step(STEP, …)"
)
FILE_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "rglob"})
"""Methods that only files have, whatever object they are called on."""

_MUTATING = """
    append extend insert remove pop popitem clear add discard update setdefault sort reverse appendleft popleft
"""
MUTATING = frozenset(_MUTATING.split())
"""Methods that change a list, dict, set or deque."""

ORDER_FREE = frozenset({"sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all"})
"""Functions for which the order of what they are given does not matter."""

ORDERED = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "reversed", "dict.fromkeys"})
"""Functions that keep the order of what they are given."""

COROUTINES = frozenset({"step", "child", "wait_signal", "map"})
"""Methods of a run that do nothing until they are awaited."""

ASYNCIO_COROUTINES = frozenset({"asyncio.sleep", "asyncio.wait", "asyncio.wait_for"})


def rule_of(name: str) -> Rule | None:
    """The rule that a dotted name falls under, or None."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        start = ".".join(parts[:length])
        if start in ALLOWED:
            return None
        for rule in BY_NAME:
            if start in rule.names:
                return rule
    return None

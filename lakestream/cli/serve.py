"""`lakestream serve`: one server process.

Belongs here: from arguments to a running node, and from a failed start to one line and exit code 1. Every start imports
this module, so nothing heavy may be imported here.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakestream import __version__
from lakestream.cli.flags import CommandLine, FlagError, parse, usage
from lakestream.config.errors import SettingsError, StartError, reason_in_words
from lakestream.config.loading import load, reloadable
from lakestream.config.options import Flags, Options
from lakestream.lazy_modules import leave_out
from lakestream.logging import Logger
from lakestream.server.early_signals import EARLY

if TYPE_CHECKING:
    from lakestream.server.node import Node
    from lakestream.server.workers.worker import Worker

SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
"""Signals of `-sl NAME=PID`, as in nats-server."""


def serve(arguments: Sequence[str]) -> int:
    """Run `lakestream serve` with the arguments after that word; returns the exit code."""
    return start(arguments, "lakestream serve", load, run)


def start(
    arguments: Sequence[str],
    program: str,
    settle: Callable[[Flags], Options],
    run: Callable[[Options, Logger], int],
) -> int:
    """Read a server's command line and configuration, then run it; returns the exit code.

    Args:
        arguments: what follows the command's name.
        program: the command, for its help.
        settle: makes the options of the flags; raises StartError.
        run: the server.
    """
    try:
        command = parse(arguments)
        done = _instead(command, program)
        if done is not None:
            return done
        options = settle(command.flags)
        for notice in options.notices:
            print(notice, file=sys.stderr)
        if command.test_config:
            return _tested(options, command.test_reload, settle)
        log = _logger(options)
    except FlagError as error:
        print(error, file=sys.stderr)
        print(usage(program))
        return 0
    except StartError as error:
        _say(f"{error}\n" if error.of_settings else str(error))
        return 1
    except LogFileError as error:
        print(time.strftime("%Y/%m/%d %H:%M:%S"), error, file=sys.stderr)
        return 1
    return run(options, log)


NOT_RELOADABLE = 3
"""Exit code of `-t --test_reload` for a file that a running server takes at a restart only, as of nats-server."""


def _tested(options: Options, reloaded: str, settle: Callable[[Flags], Options]) -> int:
    """Say that the configuration is valid, and that a server with it can reload another file; returns the exit code.

    Raises:
        StartError: the other file is invalid.
    """
    if reloaded:
        new = settle(replace(options.flags, config=reloaded))
        try:
            reloadable(options, new)
        except StartError as error:
            _say(str(error))
            return NOT_RELOADABLE
    _say(f"configuration file {options.config_file} is valid ({options.config_digest})")
    if reloaded:
        _say(f"configuration file {reloaded} can be reloaded")
    return 0


class LogFileError(Exception):
    """Raised when the log file cannot be opened, or no syslog daemon be reached: a line on stderr with the time, as
    from nats-server."""


def _logger(options: Options) -> Logger:
    syslog = None
    if (options.syslog or options.remote_syslog) and not options.log_file:
        from lakestream.syslog import Syslog  # few servers need it

        try:
            syslog = Syslog(options.remote_syslog)
        except ValueError as error:  # of a flag
            raise LogFileError(f"error {error}") from error
    try:
        return Logger(
            options.log_file,
            max_bytes=options.log_size_limit,
            max_files=options.log_max_num,
            syslog=syslog,
            debug=options.debug,
            trace=options.trace,
            logtime=options.logtime,
            utc=options.logtime_utc,
            as_json=options.log_json,
        )
    except OSError as error:
        reason = reason_in_words(error) if error.errno else str(error)
        if syslog is not None:
            raise LogFileError(
                f"error connecting to syslog: {options.remote_syslog or 'this machine'}: {reason}"
            ) from error
        raise LogFileError(f"error opening file: open {options.log_file}: {reason}") from error


Make = Callable[[Options, "Logger", "Worker | None"], "Node"]
"""Makes the node of a server, or of one of its workers."""


def run(options: Options, log: Logger, make: Make | None = None) -> int:
    """Run a server (its nodes of `make`, if given) until it is told to stop; returns the exit code."""
    EARLY.log = log
    EARLY.catch()
    try:
        _prepare(options, log)
    except StartError as error:
        _fail(error, options, log)
        log.close()
        return 1
    if options.workers == 1:
        return _run_node(options, log, make, None)
    import lakestream.server.node  # once, for all workers
    from lakestream.server.workers.supervisor import WorkerSupervisor

    assert lakestream.server.node
    try:
        return WorkerSupervisor(options, log, lambda own, worker: _run_node(own, _logger(own), make, worker)).run()
    except (StartError, OSError) as error:
        _fail(error, options, log)
        return 1
    finally:
        log.close()


def _prepare(options: Options, log: Logger) -> None:
    """Check directories, and distribute the streams of former workers, before what takes long to import. Raise
    StartError."""
    if options.jetstream is not None:
        check_directory(options.jetstream.store_dir)
        if options.workers == 1 and os.path.isdir(os.path.join(options.jetstream.store_dir, "workers")):
            from lakestream.server.workers.stores import distribute

            for line in distribute(options.jetstream, 1):
                log.info(line)
    if options.pid_file and not os.path.isdir(os.path.dirname(options.pid_file) or os.curdir):
        from lakestream.ops.ports_file import write_pid_file

        write_pid_file(options.pid_file)  # fails, as it would later


def _run_node(options: Options, log: Logger, make: Make | None, worker: Worker | None) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    from lakestream.lake.errors import LakeError
    from lakestream.log.format.errors import LogError
    from lakestream.server.heap import bound_arenas, share_with_pyarrow

    bound_arenas()  # before any thread has an arena of its own
    share_with_pyarrow()
    leave_out("pandas")  # which pyarrow loads at its first conversion: 50 MiB, and half of a first read's time
    if make is None:
        from lakestream.server.node import Node

        make = Node
    try:
        make(options, log, worker).run()
    except SettingsError as error:
        _say(str(error))
        return 1
    except (StartError, LogError, LakeError, OSError) as error:
        _fail(error, options, log)
        return 1
    finally:
        log.close()
    return 0


def check_directory(store_dir: str) -> None:
    """Make the directory of the streams, and check that files can be made in it.

    Raises:
        StartError: it cannot be used, with nats-server's text.
    """
    directory = os.path.join(store_dir, "jetstream")
    wrong = ""
    try:
        if not stat.S_ISDIR(os.stat(directory).st_mode):
            wrong = "storage directory is not a directory"
        elif not os.access(directory, os.W_OK | os.X_OK):
            wrong = "storage directory is not writable"
    except FileNotFoundError:
        from lakestream.log.format.files import Files  # only a first start pays for the import

        try:
            Files().make_directory(directory)
        except OSError as error:
            wrong = f"could not create storage directory - mkdir {error.filename}: {reason_in_words(error)}"
    except OSError:
        wrong = "storage directory is not a directory"
    if wrong:
        raise StartError(f"Can't start JetStream: {wrong}")


def _fail(error: Exception, options: Options, log: Logger) -> None:
    log.fatal(str(error))
    if options.log_file:
        _say(str(error))  # the operator sees the terminal, not the log file


def _instead(command: CommandLine, program: str) -> int | None:
    """Do what the command line asks instead of serving (help, version, signal); return None to serve."""
    if command.show_version:
        print(f"lakestream: v{__version__}")
    elif command.show_help:
        print(usage(program))
    elif command.signal:
        send_signal(command.signal)
    elif command.test_config and not command.flags.config:
        raise StartError("must specify [-c, --config] option to check configuration file syntax")
    elif command.test_reload and not command.test_config:
        raise StartError("--test_reload can only be used together with -t")
    else:
        return None
    return 0


def send_signal(request: str) -> None:
    """Handle `-sl NAME=PID`; the PID may be the path of a PID file.

    Raises:
        StartError: unknown signal, no such process.
    """
    name, _, target = request.partition("=")
    number = SIGNALS.get(name)
    if number is None:
        raise StartError(f'unknown signal "{name}"')
    if not target:
        raise StartError(f"-sl {name} needs a process: -sl {name}=PID or -sl {name}=PIDFILE")
    pid = _pid(target)
    try:
        os.kill(pid, number)
    except (OSError, OverflowError) as error:
        reason = reason_in_words(error) if isinstance(error, OSError) else str(error)
        raise StartError(f'\nsignal "{name}" {pid}: {reason}') from error


def _pid(target: str) -> int:
    text = target
    if not target.isdecimal():
        try:
            with open(target, encoding="ascii", errors="replace") as stream:
                text = stream.read(32).strip()
        except OSError as error:
            raise StartError(f"invalid pid: {target}") from error
    # kill(2) takes 0 and negative numbers for process groups.
    if not text.isdecimal() or int(text) == 0:
        raise StartError(f"invalid pid: {target}")
    return int(text)


def _say(text: str) -> None:
    print(f"lakestream: {text}", file=sys.stderr)

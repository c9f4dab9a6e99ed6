"""specswitch as a process: its signals, what it says at its start, its exit code."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

from proxy import __version__
from proxy.app import App, running
from proxy.calibrated import tell_of
from proxy.config import Config
from proxy.control.log import BufferedLog
from proxy.errors import SpecswitchError

_log = logging.getLogger(__name__)


async def serve(config: Config, log: BufferedLog, load: Callable[[], Config]) -> int:
    """Serve until a signal says stop; the exit code. What ends it early is said in the log.

    `load` reads the configuration again, at a SIGHUP or when the admin listener is told to. From
    then on the garbage collector is on.
    """
    # One that comes before there is something to reload, or when all is over, must not end us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The listener opens before all is built: who is told to stop in between ends like any other.
    told = asyncio.Event()
    call_on_signals(told.set)
    try:
        async with running(config, log=log, load=load) as app:
            call_on_signals(app.stop)
            if told.is_set():
                app.stop()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.reload_soon)
            _announce(app)
            app.provide_descriptors()
            # What is there now is there to stay; the collector need not look at it again, nor once:
            # it would stop the first requests for 30 ms, for half a MiB. Requests leave no cycles
            # behind, so looking often finds nothing and stops every stream for it.
            gc.freeze()
            gc.set_threshold(20_000, 50, 100)
            gc.enable()
            code = await app.until_stopped()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            return code
    except SpecswitchError as error:
        _log.critical("ended: %s", error)
        return 1


def call_on_signals(call: Callable[[], object]) -> None:
    """SIGTERM and SIGINT call `call`, from now until the loop ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)


def _announce(app: App) -> None:
    upstreams = app.config.upstreams
    _log.info("specswitch %s serves at %s, admin at %s", __version__, app.url, app.admin_url)
    _log.info("spec is %s, base is %s", upstreams.spec.url, upstreams.base.url)
    tell_of(app.config, app.calibration)

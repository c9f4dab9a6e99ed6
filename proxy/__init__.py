"""specswitch: two SGLang servers, one endpoint, speculation on when it pays.

The map of the package, top to bottom; a module imports only from below its own line
(import-linter holds it to that, docs/architecture.md says why):

    cli            argv to Config to a command
    demo           the simulated pair, with and without the proxy
    app            builds everything and owns every lifetime
    wiring         the Config as the values that each part is set to
    config         TOML, environment and flags to one frozen Config; for those above only
    control        the control plane: admin listener, prober, metrics, logs
    data           the data plane: bytes from client to engine and back
    tools          commands that talk to servers over HTTP
    sim            a simulated GPU with two engines on it
    core           decides; does no I/O
    errors         every error, with its status and whose fault it is
"""

__version__ = "0.1.0"

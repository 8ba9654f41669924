//! Waiting for servers without the interpreter's lock. Python's signal handlers run during a wait.
//! If a handler raises an exception, as the handler of Ctrl-C does, the wait ends with it. A long
//! wait issues one warning.

use crate::mounted::State;
use posix::{Mount, MountError, block_on_until_interrupted};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::{PyErr, PyResult, Python};
use std::ffi::CString;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use wire::Errno;

/// A wait warns if a server has not answered a request for this time.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Checks for the signals that end a wait.
struct SignalWatch<'m> {
    /// The mount whose servers the call waits for; `None` while the call mounts.
    mount: Option<&'m Mount>,
    has_warned: bool,
    /// The exception of a signal handler, or of the warning.
    raised: Option<PyErr>,
}

impl<'m> SignalWatch<'m> {
    fn new(mount: Option<&'m Mount>) -> SignalWatch<'m> {
        SignalWatch {
            mount,
            has_warned: false,
            raised: None,
        }
    }

    /// Runs the signal handlers, and warns if a server does not answer. Returns whether an
    /// exception ends the wait.
    fn is_interrupted(&mut self) -> bool {
        let silent = match self.mount.filter(|_| !self.has_warned) {
            Some(mount) => mount.silent_servers(WARN_AFTER),
            None => Vec::new(),
        };
        self.has_warned |= !silent.is_empty();
        let check = |py: Python<'_>| {
            py.check_signals()?;
            match silent.is_empty() {
                true => Ok(()),
                false => warn(py, &silent.join(", ")),
            }
        };
        // Without an interpreter, at the end of the program, no handler runs any more.
        self.raised = Python::try_attach(check).and_then(Result::err);
        self.raised.is_some()
    }

    /// The result of a wait, or the exception that ended it.
    fn finish<T>(self, result: T) -> PyResult<T> {
        self.raised.map_or(Ok(result), Err)
    }
}

fn warn(py: Python<'_>, servers: &str) -> PyResult<()> {
    let text = format!(
        "nacre: a call waits for {servers} (no answer for {} s); Ctrl-C ends the call, and the environment variable \
         NACRE_LOG=warn logs such waits",
        WARN_AFTER.as_secs()
    );
    let text = CString::new(text)?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
}

/// Runs a call that may stop halfway, such as a read or a lookup: drops it after an interruption.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    state: &State,
    call: impl AsyncFnOnce() -> Result<T, Errno> + Send,
) -> PyResult<Result<T, Errno>> {
    py.detach(|| {
        let (mount, mut watch) = (&state.mount, SignalWatch::new(Some(&state.mount)));
        let mut call = pin!(mount.run_for_job(call()));
        let result = block_on_until_interrupted(mount.runtime(), &mut call, || watch.is_interrupted());
        watch.finish(result.unwrap_or(Err(Errno::EINTR)))
    })
}

/// Runs a call that must complete, such as a change of names or a close: it continues in the
/// background after an interruption.
pub(crate) fn run_to_completion<T: Send + 'static>(
    py: Python<'_>,
    state: &Arc<State>,
    call: impl Future<Output = Result<T, Errno>> + Send + 'static,
) -> PyResult<Result<T, Errno>> {
    let mut call = Box::pin(state.mount.run_for_job(call));
    py.detach(move || {
        let (mount, mut watch) = (&state.mount, SignalWatch::new(Some(&state.mount)));
        let result = block_on_until_interrupted(mount.runtime(), &mut call, || watch.is_interrupted());
        if result.is_none() {
            mount.runtime().spawn(call);
        }
        watch.finish(result.unwrap_or(Err(Errno::EINTR)))
    })
}

/// Mounts a file system. An exception of a signal handler ends the attempt.
pub(crate) fn mount(py: Python<'_>, source: &str, options: &str) -> PyResult<Result<Mount, MountError>> {
    py.detach(|| {
        let mut watch = SignalWatch::new(None);
        let is_interrupted = || watch.is_interrupted();
        let mounted = Mount::start_interruptible(source.as_bytes(), options.as_bytes(), is_interrupted);
        watch.finish(mounted)
    })
}

/// Closes files and unmounts.
pub(crate) fn unmount(
    py: Python<'_>,
    mount: &Mount,
    close_files: impl AsyncFnOnce() -> Result<(), Errno> + Send,
) -> PyResult<Result<(), Errno>> {
    py.detach(|| {
        let mut watch = SignalWatch::new(Some(mount));
        let result = mount.unmount_interruptible(close_files, || watch.is_interrupted());
        watch.finish(result)
    })
}

//! Waiting for servers without the interpreter's lock. Meanwhile Python's signal handlers run: if
//! one raises an exception, as that of Ctrl-C does, the wait ends with this exception. A long wait
//! warns once.

use crate::mounted::State;
use parking_lot::Mutex;
use posix::{Mount, MountError};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::{PyErr, PyResult, Python};
use std::ffi::CString;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use wire::Errno;

/// Interval of the checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// A wait warns when a server has left a request without an answer for this time.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Resolves with the exception of a signal handler, or with that of the warning.
async fn interrupted(mount: Option<&Mount>) -> PyErr {
    let mut warns = true;
    loop {
        tokio::time::sleep(SIGNAL_POLL).await;
        let silent = match mount.filter(|_| warns) {
            Some(mount) => mount.silent_servers(WARN_AFTER),
            None => Vec::new(),
        };
        warns &= silent.is_empty();
        let check = |py: Python<'_>| {
            py.check_signals()?;
            match silent.is_empty() {
                true => Ok(()),
                false => warn(py, &silent.join(", ")),
            }
        };
        match Python::try_attach(check) {
            Some(Ok(())) => {}
            Some(Err(e)) => return e,
            // The interpreter ends: no handler runs any more.
            None => pending().await,
        }
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
        let mount = &state.mount;
        mount.runtime().block_on(async {
            tokio::select! {
                biased;
                result = mount.run_for_job(call()) => Ok(result),
                e = interrupted(Some(mount)) => Err(e),
            }
        })
    })
}

/// Runs a call that must complete, such as a change of names or a close: it continues in the
/// background after an interruption.
pub(crate) fn run_to_completion<T: Send + 'static>(
    py: Python<'_>,
    state: &Arc<State>,
    call: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let mut call = Box::pin(state.mount.run_for_job(call));
    py.detach(|| {
        let mount = &state.mount;
        let result = mount.runtime().block_on(async {
            tokio::select! {
                biased;
                result = &mut call => Ok(result),
                e = interrupted(Some(mount)) => Err(e),
            }
        });
        if result.is_err() {
            mount.runtime().spawn(call);
        }
        result
    })
}

/// Mounts.
pub(crate) fn mount(py: Python<'_>, source: &str, options: &str) -> PyResult<Result<Mount, MountError>> {
    py.detach(|| {
        until_interrupted(None, |interrupted| {
            Mount::start_unless(source.as_bytes(), options.as_bytes(), interrupted)
        })
    })
}

/// Closes files and unmounts.
pub(crate) fn unmount(
    py: Python<'_>,
    mount: &Mount,
    close_files: impl AsyncFnOnce() -> Result<(), Errno> + Send,
) -> PyResult<Result<(), Errno>> {
    py.detach(|| {
        until_interrupted(Some(mount), |interrupted| {
            mount.unmount_unless(close_files, interrupted)
        })
    })
}

/// Calls `wait` with a future that resolves at an interruption. Returns the exception that
/// interrupted the wait.
fn until_interrupted<T>(
    mount: Option<&Mount>,
    wait: impl FnOnce(Pin<Box<dyn Future<Output = ()> + '_>>) -> T,
) -> PyResult<T> {
    let raised = Mutex::new(None);
    let result = wait(Box::pin(async {
        let e = interrupted(mount).await;
        *raised.lock() = Some(e);
    }));
    match raised.into_inner() {
        Some(e) => Err(e),
        None => Ok(result),
    }
}

//! The state that a mount and its open files share.

use crate::{errors, wait};
use parking_lot::Mutex;
use posix::{Mount, Open};
use pyo3::{PyResult, Python};
use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::Errno;

/// A mount with its open files.
pub(crate) struct State {
    pub(crate) mount: Mount,
    /// The open files by their number.
    files: Mutex<OpenFiles>,
    unmounted: AtomicBool,
}

#[derive(Default)]
struct OpenFiles {
    last_number: u64,
    by_number: HashMap<u64, (Arc<Open>, PathBuf)>,
}

impl State {
    /// Adds the open file of a path; returns its number.
    pub(crate) fn add(&self, open: Arc<Open>, path: PathBuf) -> u64 {
        let mut files = self.files.lock();
        files.last_number += 1;
        let number = files.last_number;
        files.by_number.insert(number, (open, path));
        number
    }

    /// Removes an open file; false: it was removed before.
    pub(crate) fn remove(&self, number: u64) -> bool {
        self.files.lock().by_number.remove(&number).is_some()
    }
}

/// A reference to the state. In a child process it refuses all calls, and never drops the state:
/// the end of a runtime would wait for threads that the process does not have.
pub(crate) struct StateRef(Option<Arc<State>>);

impl StateRef {
    pub(crate) fn new(mount: Mount) -> StateRef {
        StateRef(Some(Arc::new(State {
            mount,
            files: Mutex::default(),
            unmounted: AtomicBool::new(false),
        })))
    }

    /// Another reference to the same state.
    pub(crate) fn share(&self) -> StateRef {
        StateRef(self.0.clone())
    }

    /// The state, for a call.
    pub(crate) fn get(&self) -> PyResult<&Arc<State>> {
        match &self.0 {
            Some(state) if state.mount.was_inherited_by_fork() => Err(errors::of_child_process()),
            Some(state) if !state.unmounted.load(Ordering::Acquire) => Ok(state),
            _ => Err(errors::unmounted()),
        }
    }

    pub(crate) fn is_unmounted(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|state| state.unmounted.load(Ordering::Acquire))
    }

    /// Runs a call that may stop halfway ([`wait::run`]).
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl AsyncFnOnce(&State) -> Result<T, Errno> + Send,
    ) -> PyResult<Result<T, Errno>> {
        let state = self.get()?;
        wait::run(py, state, async || call(state).await)
    }

    /// Runs a call that must complete ([`wait::run_to_completion`]).
    pub(crate) fn run_to_completion<T, F>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Arc<State>) -> F,
    ) -> PyResult<Result<T, Errno>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Errno>> + Send + 'static,
    {
        let state = self.get()?;
        wait::run_to_completion(py, state, call(state.clone()))
    }

    /// Closes the open files and unmounts. Returns the first error of a close. Does nothing if
    /// already unmounted.
    pub(crate) fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_unmounted() {
            return Ok(());
        }
        let state = self.get()?;
        if state.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let open = std::mem::take(&mut state.files.lock().by_number);
        let failed = Mutex::new(None);
        let result = wait::unmount(py, &state.mount, async || {
            let mut result = Ok(());
            for (file, path) in open.values() {
                let closed = file.close(&state.mount).await;
                if let (Ok(()), Err(_)) = (result, closed) {
                    *failed.lock() = Some(path);
                }
                result = result.and(closed);
            }
            result
        })?;
        result.map_err(|e| match failed.into_inner() {
            Some(path) => errors::of_path(e, path),
            None => errors::of_file(e),
        })
    }
}

impl Drop for StateRef {
    fn drop(&mut self) {
        if let Some(state) = self.0.take()
            && state.mount.was_inherited_by_fork()
        {
            std::mem::forget(state);
        }
    }
}

impl Deref for State {
    type Target = Mount;

    fn deref(&self) -> &Mount {
        &self.mount
    }
}

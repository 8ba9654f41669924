//! Open files. `nacre.File` in Python adds Python's file interface to them.

use crate::buffer::{Input, Output};
use crate::errors;
use crate::mounted::{State, StateRef};
use crate::stat::StatResult;
use bytes::Bytes;
use posix::files::{CALL_BYTES_MAX, to_offset};
use posix::{File, Open, attrs};
use pyo3::PyErr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{Bound, PyAny, PyResult, Python, pyclass, pymethods};
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::Errno;

/// An open file with a position.
#[pyclass(frozen, module = "nacre")]
pub(crate) struct OpenFile {
    state: StateRef,
    open: Arc<Open>,
    /// The path, for errors.
    path: PathBuf,
    number: u64,
    closed: AtomicBool,
}

/// Makes a `bytes` object from the pieces of a read.
pub(crate) fn join<'py>(py: Python<'py>, pieces: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    if let [piece] = pieces {
        return Ok(PyBytes::new(py, piece));
    }
    let len = pieces.iter().map(Bytes::len).sum();
    PyBytes::new_with(py, len, |mut rest| {
        for piece in pieces {
            let (filled, left) = rest.split_at_mut(piece.len());
            filled.copy_from_slice(piece);
            rest = left;
        }
        Ok(())
    })
}

impl OpenFile {
    pub(crate) fn new(state: &StateRef, open: Open, path: PathBuf) -> PyResult<OpenFile> {
        let open = Arc::new(open);
        Ok(OpenFile {
            number: state.get()?.add(open.clone(), path.clone()),
            state: state.share(),
            open,
            path,
            closed: AtomicBool::new(false),
        })
    }

    /// Runs a call on the file without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl AsyncFnOnce(&State, &File) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(PyValueError::new_err("I/O operation on closed file"));
        }
        let open = &self.open;
        let result = self
            .state
            .run(py, async |state| call(state, open.file()?).await)?;
        result.map_err(|e| self.error(e))
    }

    fn error(&self, errno: Errno) -> PyErr {
        errors::of_path(errno, &self.path)
    }
}

#[pymethods]
impl OpenFile {
    /// Reads up to `size` bytes at the file position; empty at the end of the file.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.min(CALL_BYTES_MAX);
        let pieces = self.run(py, async |state, file| file.read_bytes(state, size).await)?;
        join(py, &pieces)
    }

    /// Reads up to `size` bytes at an offset.
    fn pread<'py>(&self, py: Python<'py>, size: usize, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (size, from) = (
            size.min(CALL_BYTES_MAX),
            to_offset(offset).map_err(|e| self.error(e))?,
        );
        let pieces = self.run(py, async |state, file| {
            file.read_bytes_at(state, from, size).await
        })?;
        join(py, &pieces)
    }

    /// Reads at the file position into a buffer; returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut output = Output::of(buffer)?;
        let memory = output.slice();
        self.run(py, async |state, file| file.read(state, memory).await)
    }

    /// Reads at an offset into a buffer; returns the number of bytes.
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let from = to_offset(offset).map_err(|e| self.error(e))?;
        let mut output = Output::of(buffer)?;
        let memory = output.slice();
        self.run(py, async |state, file| file.read_at(state, memory, from).await)
    }

    /// Writes at the file position, or at the end of a file that is open for appending; returns the
    /// number of bytes.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let input = Input::of(data)?;
        let bytes = input.slice();
        self.run(py, async |state, file| file.write(state, bytes).await)
    }

    /// Writes at an offset, or at the end of a file that is open for appending; returns the number
    /// of bytes.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let to = to_offset(offset).map_err(|e| self.error(e))?;
        let input = Input::of(data)?;
        let bytes = input.slice();
        let written = self.run(py, async |state, file| file.write_at(state, bytes, to).await)?;
        Ok(written.1)
    }

    /// Sets the file position; returns it.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<i64> {
        self.run(py, async |state, file| file.seek(state, offset, whence).await)
    }

    /// Sets the size of the file.
    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let size = to_offset(size).map_err(|e| self.error(e))?;
        let open = self.open.clone();
        let result =
            self.state.run_to_completion(
                py,
                |state| async move { open.file()?.truncate(&state, size).await },
            )?;
        result.map_err(|e| self.error(e))
    }

    /// The attributes of the file.
    fn stat(&self, py: Python<'_>) -> PyResult<StatResult> {
        let fid = self.open.fid();
        let attr = self.run(py, async |state, _| attrs::stat(state, fid).await)?;
        Ok(StatResult(attr))
    }

    /// Waits until the file is on the servers' disks.
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let open = &self.open;
        self.run(py, async |state, _| open.sync(state, data_only).await)
    }

    /// Sends written data to the servers and closes the file.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed.load(Ordering::Acquire) || self.state.is_unmounted() {
            return Ok(());
        }
        let state = self.state.get()?;
        if self.closed.swap(true, Ordering::AcqRel) || !state.remove(self.number) {
            return Ok(());
        }
        let open = self.open.clone();
        let result = self
            .state
            .run_to_completion(py, |state| async move { open.close(&state).await })?;
        result.map_err(|e| self.error(e))
    }
}

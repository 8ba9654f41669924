//! Memory of Python objects, with all unsafe code of this crate.
//!
//! A [`PyBuffer`] keeps the object's memory at its address until it is dropped, also while other
//! threads run Python code. Those threads could read or write the memory at the same time, as they
//! can during a `readinto` of Python's own files; the content is then undefined.

#![allow(
    unsafe_code,
    reason = "makes slices of the memory of Python objects; no other module does"
)]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult};
use std::mem::MaybeUninit;

/// The memory of a Python object for output, such as that of a `bytearray`.
pub(crate) struct Output(PyBuffer<u8>);

/// The memory of a Python object for input, such as that of `bytes`.
pub(crate) struct Input(PyBuffer<u8>);

impl Output {
    /// The memory of `object`, which must be writable and contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Output> {
        let buffer = bytes_of(object)?;
        match buffer.readonly() {
            true => Err(PyTypeError::new_err(
                "a writable buffer is needed, such as a bytearray",
            )),
            false => Ok(Output(buffer)),
        }
    }

    pub(crate) fn slice(&mut self) -> &mut [MaybeUninit<u8>] {
        let Some(memory) = self.0.as_slice_ptr() else {
            return &mut [];
        };
        // SAFETY: the buffer keeps the memory valid and writable as long as `self` exists. The
        // module's documentation says why other threads do not matter.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), memory.len()) }
    }
}

impl Input {
    /// The memory of `object`, which must be contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Input> {
        bytes_of(object).map(Input)
    }

    pub(crate) fn slice(&self) -> &[u8] {
        let Some(memory) = self.0.as_slice_ptr() else {
            return &[];
        };
        // SAFETY: the buffer keeps the memory valid as long as `self` exists. The module's
        // documentation says why other threads do not matter.
        unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len()) }
    }
}

/// The memory of an object as bytes. The object's items may have another type, such as numbers.
fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let buffer = match PyBuffer::get(object) {
        Ok(buffer) => buffer,
        // The object has items of another type, such as an array of numbers.
        Err(e) if e.is_instance_of::<PyBufferError>(object.py()) => {
            let view = object
                .py()
                .import("builtins")?
                .call_method1("memoryview", (object,))?;
            PyBuffer::get(&view.call_method1("cast", ("B",))?)?
        }
        Err(e) => return Err(e),
    };
    match buffer.is_c_contiguous() {
        true => Ok(buffer),
        false => Err(PyBufferError::new_err("the buffer must be contiguous")),
    }
}

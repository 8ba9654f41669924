//! Errors of calls as Python's exceptions: `OSError` with errno and, if the call has one, the path.
//! Python makes it a subclass such as `FileNotFoundError`.

use posix::MountError;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use std::io;
use std::path::Path;
use wire::Errno;

/// An `OSError` with a text, without a file name.
fn os_error(errno: Errno, text: String) -> PyErr {
    PyOSError::new_err((errno.for_programs().0, text))
}

/// The text of strerror(3), to which std appends the number.
fn text_of(errno: Errno) -> String {
    let number = errno.for_programs().0;
    let text = io::Error::from_raw_os_error(number).to_string();
    text.replace(&format!(" (os error {number})"), "")
}

/// An `OSError` without a path, such as that of a call on an open file.
pub(crate) fn of_file(errno: Errno) -> PyErr {
    os_error(errno, text_of(errno))
}

/// The `OSError` of a call on a path.
pub(crate) fn of_path(errno: Errno, path: &Path) -> PyErr {
    let name = path.as_os_str().to_owned();
    PyOSError::new_err((errno.for_programs().0, text_of(errno), name))
}

/// The `OSError` of a call on two paths.
pub(crate) fn of_paths(errno: Errno, from: &Path, to: &Path) -> PyErr {
    let names = (from.as_os_str().to_owned(), to.as_os_str().to_owned());
    // The fourth argument is for Windows only.
    let windows_error = None::<i32>;
    PyOSError::new_err((
        errno.for_programs().0,
        text_of(errno),
        names.0,
        windows_error,
        names.1,
    ))
}

/// The error of a mount.
pub(crate) fn of_mount(e: MountError) -> PyErr {
    os_error(e.errno, e.message)
}

/// The error of a call on an unmounted file system.
pub(crate) fn unmounted() -> PyErr {
    PyValueError::new_err("the file system is unmounted: create a new nacre.FileSystem")
}

/// The error of a call in a child process on a file system of its parent.
pub(crate) fn of_child_process() -> PyErr {
    PyRuntimeError::new_err(
        "this process is a fork of the process that mounted the file system, and has none of its \
         network threads: create a nacre.FileSystem in this process, or start workers with the method 'spawn'",
    )
}

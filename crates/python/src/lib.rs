//! The compiled part of the Python package `nacre`, thin over the crate [`posix`].
//!
//! [`fs`] has a mount and the calls on paths, [`file`] open files, [`listing`] directories,
//! [`read_many`] many reads in one call, on several threads. Each call runs without the
//! interpreter's lock, so that other threads of the program continue, and ends at Ctrl-C
//! ([`wait`]). Modules in Python (`python/nacre`) add the interfaces of `io`, `asyncio` and
//! `fsspec`.

mod buffer;
mod errors;
mod file;
mod fs;
mod listing;
mod mounted;
mod read_many;
mod stat;
mod wait;

use pyo3::prelude::pymodule;

/// The compiled part of the package.
#[pymodule]
mod _nacre {
    #[pymodule_export]
    use crate::file::OpenFile;
    #[pymodule_export]
    use crate::fs::Mounted;
    #[pymodule_export]
    use crate::listing::DirEntry;
    #[pymodule_export]
    use crate::stat::{StatFs, StatResult};

    use pyo3::prelude::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

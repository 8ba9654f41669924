//! Attributes of files and space of the file system, with the names of Python's `os` module.

use client::{Attr, BLKSIZE, StatFs as Space};
use pyo3::prelude::{pyclass, pymethods};
use wire::Time;

/// The attributes of a file. The fields have the names of `os.stat_result`; `st_dev` is missing.
#[pyclass(frozen, module = "nacre")]
pub(crate) struct StatResult(pub(crate) Attr);

/// A time in seconds, as Python's `os` module gives it.
pub(crate) fn seconds(time: Time) -> f64 {
    time.sec as f64 + f64::from(time.ns) / 1e9
}

/// A time in nanoseconds.
fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.ns)
}

#[pymethods]
impl StatResult {
    #[getter]
    fn st_mode(&self) -> u32 {
        self.0.mode
    }

    #[getter]
    fn st_ino(&self) -> u64 {
        self.0.fid.flatten()
    }

    #[getter]
    fn st_nlink(&self) -> u32 {
        self.0.nlink
    }

    #[getter]
    fn st_uid(&self) -> u32 {
        self.0.uid
    }

    #[getter]
    fn st_gid(&self) -> u32 {
        self.0.gid
    }

    #[getter]
    fn st_size(&self) -> u64 {
        self.0.size
    }

    #[getter]
    fn st_blocks(&self) -> u64 {
        self.0.blocks
    }

    #[getter]
    fn st_blksize(&self) -> u32 {
        BLKSIZE
    }

    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.0.atime)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.0.mtime)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.0.ctime)
    }

    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanoseconds(self.0.atime)
    }

    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanoseconds(self.0.mtime)
    }

    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanoseconds(self.0.ctime)
    }

    fn __repr__(&self) -> String {
        let Attr { mode, size, .. } = &self.0;
        format!("nacre.StatResult(st_mode=0o{mode:o}, st_size={size})")
    }
}

/// The space of the file system. The fields are those of `os.statvfs_result`,
/// except `f_flag` and `f_fsid`.
#[pyclass(frozen, module = "nacre")]
pub(crate) struct StatFs(pub(crate) Space);

#[pymethods]
impl StatFs {
    #[getter]
    fn f_bsize(&self) -> u32 {
        self.0.bsize
    }

    #[getter]
    fn f_frsize(&self) -> u32 {
        self.0.bsize
    }

    #[getter]
    fn f_blocks(&self) -> u64 {
        self.0.blocks
    }

    #[getter]
    fn f_bfree(&self) -> u64 {
        self.0.bfree
    }

    #[getter]
    fn f_bavail(&self) -> u64 {
        self.0.bavail
    }

    #[getter]
    fn f_files(&self) -> u64 {
        self.0.files
    }

    #[getter]
    fn f_ffree(&self) -> u64 {
        self.0.ffree
    }

    #[getter]
    fn f_favail(&self) -> u64 {
        self.0.ffree
    }

    #[getter]
    fn f_namemax(&self) -> u32 {
        self.0.namelen
    }
}

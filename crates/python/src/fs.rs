//! A mount and the calls on paths. `nacre.FileSystem` in Python extends it.

use crate::errors;
use crate::file::{OpenFile, join};
use crate::listing::{self, DirEntry};
use crate::mounted::{State, StateRef};
use crate::read_many::read_many;
use crate::stat::{StatFs, StatResult};
use bytes::Bytes;
use client::{SetAttr, SetTime};
use posix::attrs::{self, with_path};
use posix::files::{self, to_offset};
use posix::{Mount, names};
use pyo3::prelude::{Bound, PyAny, PyResult, Python, pyclass, pymethods};
use pyo3::types::PyBytes;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{Errno, Time};

/// A mounted file system.
#[pyclass(frozen, subclass, module = "nacre")]
pub(crate) struct Mounted(StateRef);

fn raw(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Mounted {
    /// Runs a call on a path without the interpreter's lock.
    fn on_path<T: Send>(
        &self,
        py: Python<'_>,
        path: &Path,
        call: impl AsyncFnOnce(&State, &[u8]) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let result = self.0.run(py, async |state| call(state, raw(path)).await)?;
        result.map_err(|e| errors::of_path(e, path))
    }

    /// Changes attributes of a path's file.
    fn change(&self, py: Python<'_>, path: &Path, follow: bool, change: SetAttr) -> PyResult<()> {
        self.on_path(py, path, async |state, raw| {
            with_path(state, raw, follow, async |fid, _| {
                attrs::set(state, fid, &change).await
            })
            .await
        })
    }
}

/// A time from its nanoseconds.
fn time_of(ns: i128) -> PyResult<SetTime> {
    let sec = i64::try_from(ns.div_euclid(1_000_000_000)).map_err(|_| errors::of_file(Errno::EINVAL))?;
    Ok(SetTime::At(Time::new(sec, ns.rem_euclid(1_000_000_000) as u32)))
}

#[pymethods]
impl Mounted {
    #[new]
    #[pyo3(signature = (source, options = ""))]
    fn new(py: Python<'_>, source: &str, options: &str) -> PyResult<Mounted> {
        let mounted = py.detach(|| Mount::start(source.as_bytes(), options.as_bytes()));
        mounted
            .map(|mount| Mounted(StateRef::new(mount)))
            .map_err(errors::of_mount)
    }

    /// Whether the file system is unmounted.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_unmounted()
    }

    /// Closes all files and unmounts.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.unmount(py)
    }

    fn open_file(&self, py: Python<'_>, path: PathBuf, flags: i32, mode: u32) -> PyResult<OpenFile> {
        let open = self.on_path(py, &path, async |state, raw| {
            let open = files::open(state, raw, flags, mode, Bytes::new()).await?;
            open.file()?;
            Ok(open)
        })?;
        OpenFile::new(&self.0, open)
    }

    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.on_path(py, &path, async |state, raw| listing::names(state, raw).await)
    }

    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn scandir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<DirEntry>> {
        self.on_path(py, &path, async |state, raw| listing::entries(state, raw).await)
    }

    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: PathBuf, follow_symlinks: bool) -> PyResult<StatResult> {
        let attr = self.on_path(py, &path, async |state, raw| {
            with_path(state, raw, follow_symlinks, async |fid, _| {
                attrs::stat(state, fid).await
            })
            .await
        })?;
        Ok(StatResult(attr))
    }

    fn statvfs(&self, py: Python<'_>) -> PyResult<StatFs> {
        let space = self.0.run(py, async |state| state.client.statfs().await)?;
        space.map(StatFs).map_err(errors::of_file)
    }

    fn access(&self, py: Python<'_>, path: PathBuf, mode: i32) -> PyResult<bool> {
        let state = self.0.get()?;
        let allowed = py.detach(|| state.run(async || attrs::access(state, raw(&path), mode).await));
        Ok(allowed.is_ok())
    }

    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.on_path(py, &path, async |state, raw| names::mkdir(state, raw, mode).await)
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.on_path(py, &path, async |state, raw| names::rmdir(state, raw).await)
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.on_path(py, &path, async |state, raw| names::unlink(state, raw).await)
    }

    fn rename(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        let renamed = self
            .0
            .run(py, async |state| names::rename(state, raw(&src), raw(&dst)).await)?;
        renamed.map_err(|e| errors::of_paths(e, &src, &dst))
    }

    fn link(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        let linked = self
            .0
            .run(py, async |state| names::link(state, raw(&src), raw(&dst)).await)?;
        linked.map_err(|e| errors::of_paths(e, &src, &dst))
    }

    fn symlink(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        let linked = self.0.run(py, async |state| {
            names::symlink(state, raw(&src), raw(&dst)).await
        })?;
        linked.map_err(|e| errors::of_paths(e, &src, &dst))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        let target = self.on_path(py, &path, async |state, raw| names::readlink(state, raw).await)?;
        Ok(OsStr::from_bytes(&target).to_owned())
    }

    fn truncate(&self, py: Python<'_>, path: PathBuf, length: i64) -> PyResult<()> {
        let size = to_offset(length).map_err(|e| errors::of_path(e, &path))?;
        self.on_path(py, &path, async |state, raw| {
            with_path(state, raw, true, async |fid, _| {
                files::truncate(state, fid, size, None).await
            })
            .await
        })
    }

    #[pyo3(signature = (path, mode, *, follow_symlinks = true))]
    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32, follow_symlinks: bool) -> PyResult<()> {
        self.change(py, &path, follow_symlinks, attrs::mode_change(mode))
    }

    /// `uid` or `gid` of -1 leaves the owner or group unchanged.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks = true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathBuf,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let id = |id: i64| match id {
            -1 => Ok(attrs::UNCHANGED),
            id => u32::try_from(id).map_err(|_| errors::of_path(Errno::EINVAL, &path)),
        };
        let (uid, gid) = (id(uid)?, id(gid)?);
        self.on_path(py, &path, async |state, raw| {
            with_path(state, raw, follow_symlinks, async |fid, _| {
                attrs::chown(state, fid, uid, gid).await
            })
            .await
        })
    }

    /// Sets access and modification time, in nanoseconds; `None`: the current time.
    #[pyo3(signature = (path, *, ns = None, follow_symlinks = true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: PathBuf,
        ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (atime, mtime) = match ns {
            None => (SetTime::Now, SetTime::Now),
            Some((atime, mtime)) => (time_of(atime)?, time_of(mtime)?),
        };
        let times = SetAttr {
            atime: Some(atime),
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        self.change(py, &path, follow_symlinks, times)
    }

    fn getxattr<'py>(&self, py: Python<'py>, path: PathBuf, name: OsString) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.on_path(py, &path, async |state, raw| {
            attrs::getxattr(state, raw, name.as_bytes()).await
        })?;
        Ok(PyBytes::new(py, &value))
    }

    #[pyo3(signature = (path, name, value, flags = 0))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: &[u8],
        flags: i32,
    ) -> PyResult<()> {
        self.on_path(py, &path, async |state, raw| {
            attrs::setxattr(state, raw, (name.as_bytes(), value), flags).await
        })
    }

    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let names = self.on_path(py, &path, async |state, raw| attrs::listxattr(state, raw).await)?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        self.on_path(py, &path, async |state, raw| {
            attrs::removexattr(state, raw, name.as_bytes()).await
        })
    }

    /// Reads ranges of files in parallel: each request is a path, an offset and a number of bytes.
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<(PathBuf, i64, usize)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let state = self.0.get()?;
        let mut reads = Vec::with_capacity(requests.len());
        for (path, offset, len) in &requests {
            let offset = to_offset(*offset).map_err(|e| errors::of_path(e, path))?;
            reads.push((Arc::from(raw(path)), offset, *len));
        }
        let read = py.detach(|| read_many(state, reads));
        let read = read.map_err(|(i, e)| {
            let path = requests.get(i).map(|(path, ..)| path.as_path());
            errors::of_path(e, path.unwrap_or(Path::new("")))
        })?;
        read.iter().map(|pieces| join(py, pieces)).collect()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

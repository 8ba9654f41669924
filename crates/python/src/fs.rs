//! A mount and the calls on paths. `nacre.FileSystem` in Python extends it.

use crate::file::{OpenFile, join};
use crate::listing::{self, DirEntry};
use crate::mounted::{State, StateRef};
use crate::stat::{StatFs, StatResult};
use crate::{errors, read_many, wait};
use bytes::Bytes;
use client::{Attr, SetAttr, SetTime};
use posix::attrs::{self, with_path};
use posix::files::{self, to_offset};
use posix::names;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{Bound, PyAny, PyResult, Python, pyclass, pymethods};
use pyo3::types::PyBytes;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;
use wire::{Errno, Time};

/// Nanoseconds in a second.
const NS_PER_S: i128 = 1_000_000_000;

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

    /// Runs a change of a path, which completes even after an interruption.
    fn change<T, F>(
        &self,
        py: Python<'_>,
        path: &Path,
        call: impl FnOnce(Arc<State>, Vec<u8>) -> F,
    ) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Errno>> + Send + 'static,
    {
        let raw = raw(path).to_vec();
        let result = self.0.run_to_completion(py, |state| call(state, raw))?;
        result.map_err(|e| errors::of_path(e, path))
    }

    /// As [`Mounted::change`], for two paths.
    fn change_two<F>(
        &self,
        py: Python<'_>,
        (src, dst): (&Path, &Path),
        call: impl FnOnce(Arc<State>, Vec<u8>, Vec<u8>) -> F,
    ) -> PyResult<()>
    where
        F: Future<Output = Result<(), Errno>> + Send + 'static,
    {
        let (from, to) = (raw(src).to_vec(), raw(dst).to_vec());
        let result = self.0.run_to_completion(py, |state| call(state, from, to))?;
        result.map_err(|e| errors::of_paths(e, src, dst))
    }

    /// Changes attributes of a path's file.
    fn set_attrs(&self, py: Python<'_>, path: &Path, follow: bool, change: SetAttr) -> PyResult<()> {
        self.change(py, path, move |state, raw| async move {
            with_path(&state, &raw, follow, |fid, _| attrs::set(&state, fid, &change)).await
        })
    }
}

/// The attributes of a path's file.
pub(crate) fn stat_path(
    state: &StateRef,
    py: Python<'_>,
    path: &Path,
    follow: bool,
) -> PyResult<Result<Attr, Errno>> {
    state.run(py, async |state| {
        with_path(state, raw(path), follow, |fid, _| attrs::stat(state, fid)).await
    })
}

/// Nanoseconds from seconds, rounded down as Python's `os.utime` does.
fn nanoseconds(seconds: f64) -> PyResult<i128> {
    let whole = seconds.floor();
    match whole.is_finite() {
        true => Ok(whole as i128 * NS_PER_S + ((seconds - whole) * NS_PER_S as f64) as i128),
        false => Err(PyValueError::new_err(format!("utime: {seconds} is not a time"))),
    }
}

/// A time from its nanoseconds.
fn time_of(ns: i128) -> PyResult<SetTime> {
    let sec = i64::try_from(ns.div_euclid(NS_PER_S)).map_err(|_| errors::of_file(Errno::EINVAL))?;
    Ok(SetTime::At(Time::new(sec, ns.rem_euclid(NS_PER_S) as u32)))
}

#[pymethods]
impl Mounted {
    #[new]
    #[pyo3(signature = (source, options = ""))]
    fn new(py: Python<'_>, source: &str, options: &str) -> PyResult<Mounted> {
        let mounted = wait::mount(py, source, options)?;
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

    /// Opens a file with the flags of open(2). `FileSystem.open` makes a Python file of it.
    fn open_file(&self, py: Python<'_>, path: PathBuf, flags: i32, mode: u32) -> PyResult<OpenFile> {
        let (sender, mut receiver) = oneshot::channel();
        self.change(py, &path, |state, raw| async move {
            let open = files::open(&state, &raw, flags, mode, Bytes::new()).await?;
            open.file()?;
            if let Err(open) = sender.send(open) {
                // The call was interrupted.
                open.close(&state).await?;
            }
            Ok(())
        })?;
        let open = receiver.try_recv();
        OpenFile::new(
            &self.0,
            open.map_err(|_| errors::of_path(Errno::EINTR, &path))?,
            path,
        )
    }

    /// The names in a directory.
    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.on_path(py, &path, async |state, raw| listing::names(state, raw).await)
    }

    /// The entries of a directory as a list of `DirEntry`, with their attributes.
    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn scandir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<DirEntry>> {
        let entries = self.on_path(py, &path, async |state, raw| listing::entries(state, raw).await)?;
        let with_state = entries.into_iter().map(|(name, attr)| {
            let path = path.join(&name);
            DirEntry::new(&self.0, name, path, attr)
        });
        Ok(with_state.collect())
    }

    /// The attributes of a file.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: PathBuf, follow_symlinks: bool) -> PyResult<StatResult> {
        let attr = stat_path(&self.0, py, &path, follow_symlinks)?;
        attr.map(StatResult).map_err(|e| errors::of_path(e, &path))
    }

    /// The space of the file system; ignores `path`.
    #[pyo3(signature = (path = PathBuf::from("/")))]
    #[expect(unused_variables, reason = "one file system has one space")]
    fn statvfs(&self, py: Python<'_>, path: PathBuf) -> PyResult<StatFs> {
        let space = self.0.run(py, async |state| state.client.statfs().await)?;
        space.map(StatFs).map_err(errors::of_file)
    }

    /// Whether this user has the permissions `os.R_OK`, `os.W_OK` and `os.X_OK` in `mode`.
    fn access(&self, py: Python<'_>, path: PathBuf, mode: i32) -> PyResult<bool> {
        let allowed = self
            .0
            .run(py, async |state| attrs::access(state, raw(&path), mode).await)?;
        Ok(allowed.is_ok())
    }

    /// Makes a directory.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.change(py, &path, move |state, raw| async move {
            names::mkdir(&state, &raw, mode).await
        })
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.change(
            py,
            &path,
            |state, raw| async move { names::rmdir(&state, &raw).await },
        )
    }

    /// Removes a file.
    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.change(py, &path, |state, raw| async move {
            names::unlink(&state, &raw).await
        })
    }

    /// Renames a file or directory; replaces an existing file.
    fn rename(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.change_two(py, (&src, &dst), |state, from, to| async move {
            names::rename(&state, &from, &to).await
        })
    }

    /// Adds a name to a file.
    fn link(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.change_two(py, (&src, &dst), |state, from, to| async move {
            names::link(&state, &from, &to).await
        })
    }

    /// Makes a symbolic link `dst` to `src`.
    fn symlink(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.change_two(py, (&src, &dst), |state, from, to| async move {
            names::symlink(&state, &from, &to).await
        })
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        let target = self.on_path(py, &path, async |state, raw| names::readlink(state, raw).await)?;
        Ok(OsStr::from_bytes(&target).to_owned())
    }

    /// Sets the size of a file.
    fn truncate(&self, py: Python<'_>, path: PathBuf, length: i64) -> PyResult<()> {
        let size = to_offset(length).map_err(|e| errors::of_path(e, &path))?;
        self.change(py, &path, move |state, raw| async move {
            with_path(&state, &raw, true, |fid, _| {
                files::truncate(&state, fid, size, None)
            })
            .await
        })
    }

    /// Sets the permissions of a file.
    #[pyo3(signature = (path, mode, *, follow_symlinks = true))]
    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32, follow_symlinks: bool) -> PyResult<()> {
        self.set_attrs(py, &path, follow_symlinks, attrs::mode_change(mode))
    }

    /// Sets owner and group; -1 leaves the owner or group unchanged.
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
        self.change(py, &path, move |state, raw| async move {
            with_path(&state, &raw, follow_symlinks, |fid, _| {
                attrs::chown(&state, fid, uid, gid)
            })
            .await
        })
    }

    /// Sets access and modification time: `times` in seconds, or `ns` in nanoseconds; without
    /// both, the current time.
    #[pyo3(signature = (path, times = None, *, ns = None, follow_symlinks = true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: PathBuf,
        times: Option<(f64, f64)>,
        ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (atime, mtime) = match (times, ns) {
            (None, None) => (SetTime::Now, SetTime::Now),
            (None, Some((atime, mtime))) => (time_of(atime)?, time_of(mtime)?),
            (Some((atime, mtime)), None) => (time_of(nanoseconds(atime)?)?, time_of(nanoseconds(mtime)?)?),
            (Some(_), Some(_)) => return Err(PyValueError::new_err("utime: pass times or ns, not both")),
        };
        let times = SetAttr {
            atime: Some(atime),
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        self.set_attrs(py, &path, follow_symlinks, times)
    }

    /// The value of an extended attribute.
    fn getxattr<'py>(&self, py: Python<'py>, path: PathBuf, name: OsString) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.on_path(py, &path, async |state, raw| {
            attrs::getxattr(state, raw, name.as_bytes()).await
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// Sets an extended attribute; `flags` are `os.XATTR_CREATE` or `os.XATTR_REPLACE`.
    #[pyo3(signature = (path, name, value, flags = 0))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: Vec<u8>,
        flags: i32,
    ) -> PyResult<()> {
        self.change(py, &path, move |state, raw| async move {
            attrs::setxattr(&state, &raw, (name.as_bytes(), &value), flags).await
        })
    }

    /// The names of the extended attributes.
    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let names = self.on_path(py, &path, async |state, raw| attrs::listxattr(state, raw).await)?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        self.change(py, &path, move |state, raw| async move {
            attrs::removexattr(&state, &raw, name.as_bytes()).await
        })
    }

    /// Reads ranges of files in parallel. Each request is a path, an offset and a number of bytes;
    /// `None` instead of the number reads to the end of the file.
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        requests: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let state = self.0.get()?;
        let requests = read_many::parse(requests)?;
        let mut reads = Vec::with_capacity(requests.len());
        for (path, offset, len) in &requests {
            let offset = to_offset(*offset).map_err(|e| errors::of_path(e, path))?;
            reads.push((Arc::from(raw(path)), offset, len.unwrap_or(usize::MAX)));
        }
        let read = read_many::read_many(py, state, reads)?;
        let read = read.map_err(|(i, e)| {
            let path = requests.get(i).map(|(path, ..)| path.as_path());
            errors::of_path(e, path.unwrap_or(Path::new("")))
        })?;
        read.iter().map(|pieces| join(py, pieces)).collect()
    }
}

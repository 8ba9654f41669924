//! The client library as a subject: every task blocks on its calls, like an MPI program.

use super::{
    DataFile, DataMode, DropCaches, NewFile, READ_BACK_DIFFERS, Subject, errno_error, join_path, object_name,
    operation_error,
};
use crate::BenchError;
use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use mdt::layout::StripeRequest;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Handle;
use wire::{Errno, Fid, LMV_USER_MAGIC, LmvUserMdV1, WireStruct};

/// Type and permissions of new files; the permissions are mdtest's.
const FILE_MODE: u32 = 0o100_664;
/// Permissions of new directories.
const DIR_MODE: u32 = 0o775;
/// Mask of the file type in a mode.
const S_IFMT: u16 = 0o170_000;
/// The file type of directories.
const S_IFDIR: u16 = 0o040_000;

/// A mount of the client library.
pub struct LibrarySubject {
    name: String,
    client: Arc<Client>,
    runtime: Handle,
    cred: Cred,
    processes: Vec<u32>,
    /// Path from the file system's root to the directory that is the subject's root.
    base: String,
    /// FIDs of the tasks' directories by path from the subject's root; a kernel would cache them
    /// too.
    dirs: RwLock<HashMap<String, Fid>>,
    drop_caches: Option<DropCaches>,
}

impl LibrarySubject {
    /// Wraps a mount; `runtime` runs its calls. Operations use the user of this process.
    pub fn new(name: impl Into<String>, client: Arc<Client>, runtime: Handle) -> LibrarySubject {
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        LibrarySubject {
            name: name.into(),
            client,
            runtime,
            cred: match uid {
                0 => Cred::root(),
                uid => Cred::user(uid, gid),
            },
            base: String::new(),
            dirs: RwLock::default(),
            drop_caches: None,
            processes: Vec::new(),
        }
    }

    /// Uses this directory, a path from the file system's root, as the subject's root.
    pub fn with_root(self, dir: &str) -> LibrarySubject {
        let names: Vec<&str> = dir.split('/').filter(|n| !n.is_empty()).collect();
        LibrarySubject {
            base: names.join("/"),
            ..self
        }
    }

    /// Sets the other processes that serve the mount. Measurements include their CPU time and
    /// memory.
    pub fn with_processes(self, processes: Vec<u32>) -> LibrarySubject {
        LibrarySubject { processes, ..self }
    }

    /// Sets a function that drops the data that the client and the servers' hosts cache.
    pub fn with_drop_caches(self, drop_caches: DropCaches) -> LibrarySubject {
        let drop_caches = Some(drop_caches);
        LibrarySubject { drop_caches, ..self }
    }

    /// Runs a call and converts its error.
    fn run<T>(
        &self,
        operation: &'static str,
        (dir, name): (&str, &str),
        call: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, BenchError> {
        self.runtime
            .block_on(call)
            .map_err(|e| errno_error(&self.name, operation, object_name(dir, name), e))
    }

    /// The FID of a directory, from the cache or by a path walk.
    async fn dir_fid(&self, dir: &str) -> Result<Fid, Errno> {
        if let Some(fid) = self.dirs.read().get(dir) {
            return Ok(*fid);
        }
        let fid = self.walk(&join_path(&self.base, dir)).await?;
        self.dirs.write().insert(dir.to_owned(), fid);
        Ok(fid)
    }

    async fn walk(&self, path: &str) -> Result<Fid, Errno> {
        let path = format!("/{path}");
        let (fid, _) = self.client.walk(&self.cred, path.as_bytes(), true).await?;
        Ok(fid)
    }

    /// The FID of the parent of the directory `dir/name`, and the directory's name. An empty name
    /// means the subject's root, whose parent is looked up; the parents of other directories are
    /// known.
    async fn place(&self, dir: &str, name: &str) -> Result<(Fid, String), Errno> {
        if !name.is_empty() {
            return Ok((self.dir_fid(dir).await?, name.to_owned()));
        }
        let path = join_path(&self.base, dir);
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", &path));
        Ok((self.walk(parent).await?, last.to_owned()))
    }

    /// Creates a directory with a layout; returns false if the directory exists already.
    fn make_dir_with(&self, dir: &str, name: &str, layout: Bytes) -> Result<bool, BenchError> {
        self.run("mkdir", (dir, name), async {
            if name.is_empty() && self.base.is_empty() {
                // The root of the file system.
                return Ok(false);
            }
            let (parent, name) = self.place(dir, name).await?;
            let made = self
                .client
                .mkdir_with(&self.cred, parent, name.as_bytes(), DIR_MODE, layout);
            match made.await {
                Ok(_) => Ok(true),
                Err(Errno::EEXIST) => Ok(false),
                Err(e) => Err(e),
            }
        })
    }

    async fn find(&self, dir: &str, name: &str) -> Result<client::FoundFile, Errno> {
        let parent = self.dir_fid(dir).await?;
        self.client.lookup(&self.cred, parent, name.as_bytes()).await
    }
}

/// An open file.
struct LibraryFile<'a> {
    subject: &'a LibrarySubject,
    dir: String,
    name: String,
    file: Arc<OpenFile>,
}

impl LibraryFile<'_> {
    fn run<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, BenchError> {
        self.subject.run(operation, (&self.dir, &self.name), call)
    }
}

impl DataFile for LibraryFile<'_> {
    fn write_at(&self, offset: u64, data: &Bytes) -> Result<(), BenchError> {
        // A write through the kernel copies the data, unless it is direct.
        let data = match self.file.flags.direct {
            true => data.clone(),
            false => Bytes::copy_from_slice(data),
        };
        let len = data.len();
        let written = self.run("write", self.subject.client.write(&self.file, offset, data))?;
        match written == len {
            true => Ok(()),
            false => self.run("write", async { Err(Errno::EIO) }),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, BenchError> {
        let mut len = 0;
        while len < into.len() {
            let rest = into.len() - len;
            let read = self.subject.client.read(&self.file, offset + len as u64, rest);
            let before = len;
            for piece in self.run("read", read)? {
                into[len..len + piece.len()].copy_from_slice(&piece);
                len += piece.len();
            }
            if len == before {
                break;
            }
        }
        Ok(len)
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.run("fsync", self.subject.client.fsync(&self.file, false))
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        // Write back at close, as the kernel client does.
        let client = &self.subject.client;
        let written = self.run("close", client.write_back(&self.file));
        written.and(self.run("close", client.release(&self.file)))
    }
}

impl Subject for LibrarySubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn processes(&self) -> &[u32] {
        &self.processes
    }

    fn enter(&self, dir: &str) -> Result<(), BenchError> {
        self.run("lookup", (dir, ""), self.dir_fid(dir)).map(drop)
    }

    fn make_dir(&self, dir: &str, name: &str) -> Result<bool, BenchError> {
        self.make_dir_with(dir, name, Bytes::new())
    }

    fn make_dir_on(&self, dir: &str, name: &str, mdt: u32) -> Result<bool, BenchError> {
        let layout = LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_offset: mdt,
            ..LmvUserMdV1::default()
        };
        self.make_dir_with(dir, name, layout.to_bytes())
    }

    fn remove_dir(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.dirs.write().remove(&join_path(dir, name));
        self.run("rmdir", (dir, name), async {
            let (parent, name) = self.place(dir, name).await?;
            self.client.rmdir(&self.cred, parent, name.as_bytes()).await
        })
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, bool)>, BenchError> {
        self.run("readdir", (dir, ""), async {
            let (handle, mut names, mut offset) = {
                let fid = self.dir_fid(dir).await?;
                (self.client.opendir(&self.cred, fid).await?, Vec::new(), 0)
            };
            loop {
                let items = self.client.readdir(&handle, offset).await?;
                let Some(last) = items.last() else {
                    return Ok(names);
                };
                offset = last.next;
                handle.advance(&items, items.len());
                for item in items.iter().filter(|i| !matches!(&*i.entry.name, b"." | b"..")) {
                    let is_dir = match item.entry.mode {
                        Some(mode) => mode & S_IFMT == S_IFDIR,
                        None => self
                            .client
                            .getattr(&self.cred, item.entry.fid)
                            .await?
                            .attr
                            .is_dir(),
                    };
                    names.push((String::from_utf8_lossy(&item.entry.name).into_owned(), is_dir));
                }
            }
        })
    }

    fn set_stripes(&self, dir: &str, stripes: u16) -> Result<(), BenchError> {
        let request = StripeRequest {
            stripe_count: stripes,
            ..StripeRequest::default()
        };
        self.run("setstripe", (dir, ""), async {
            let fid = self.dir_fid(dir).await?;
            self.client
                .setstripe(&self.cred, fid, request.to_default_layout())
                .await
        })
    }

    fn create(&self, dir: &str, name: &str, new: &NewFile) -> Result<(), BenchError> {
        let flags = OpenFlags {
            read: new.read_back,
            excl: new.exclusive,
            delay_create: new.delayed,
            ..OpenFlags::READ_WRITE
        };
        let mut differs = false;
        self.run("create", (dir, name), async {
            let parent = self.dir_fid(dir).await?;
            let (_, file) = self
                .client
                .create(&self.cred, parent, name.as_bytes(), FILE_MODE, flags)
                .await?;
            if !new.data.is_empty() {
                self.client.write(&file, 0, new.data.clone()).await?;
            }
            if new.sync {
                self.client.fsync(&file, false).await?;
            }
            if new.read_back {
                let data_read = self.client.read(&file, 0, new.data.len()).await?;
                differs = data_read.concat() != new.data;
            }
            // Write back at close, as the kernel client does.
            self.client.write_back(&file).await?;
            self.client.release(&file).await
        })?;
        match differs {
            true => Err(operation_error(
                &self.name,
                "create",
                join_path(dir, name),
                READ_BACK_DIFFERS,
            )),
            false => Ok(()),
        }
    }

    fn mknod(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run("mknod", (dir, name), async {
            let parent = self.dir_fid(dir).await?;
            self.client
                .mknod(&self.cred, parent, name.as_bytes(), FILE_MODE, 0)
                .await
                .map(drop)
        })
    }

    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run("stat", (dir, name), self.find(dir, name)).map(drop)
    }

    fn lookup(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run("lookup", (dir, name), self.find(dir, name)).map(drop)
    }

    fn open(&self, dir: &str, name: &str, bytes: usize) -> Result<Bytes, BenchError> {
        self.run("open", (dir, name), async {
            let fid = self.find(dir, name).await?.attr.fid;
            let file = self.client.open(&self.cred, fid, OpenFlags::READ).await?;
            let data = match bytes {
                0 => Bytes::new(),
                bytes => self.client.read(&file, 0, bytes).await?.concat().into(),
            };
            self.client.release(&file).await?;
            Ok(data)
        })
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<(), BenchError> {
        self.dirs.write().remove(&join_path(dir, from));
        self.run("rename", (dir, from), async {
            let parent = self.dir_fid(dir).await?;
            self.client
                .rename(&self.cred, (parent, from.as_bytes()), (parent, to.as_bytes()))
                .await
        })
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run("unlink", (dir, name), async {
            let parent = self.dir_fid(dir).await?;
            self.client.unlink(&self.cred, parent, name.as_bytes()).await
        })
    }

    fn set_xattr(&self, dir: &str, name: &str, xattr: &str, value: &[u8]) -> Result<(), BenchError> {
        self.run("setxattr", (dir, name), async {
            let fid = self.find(dir, name).await?.attr.fid;
            self.client
                .setxattr(&self.cred, fid, xattr.as_bytes(), value, 0)
                .await
        })
    }

    fn sync(&self) -> Result<(), BenchError> {
        // `create` and `write` write each file back, and the servers write to disk on their own.
        Ok(())
    }

    fn open_data(&self, dir: &str, name: &str, mode: DataMode) -> Result<Box<dyn DataFile + '_>, BenchError> {
        let flags = OpenFlags {
            write: mode.write,
            direct: mode.direct,
            ..OpenFlags::READ
        };
        let file = self.run("open", (dir, name), async {
            if mode.write {
                let parent = self.dir_fid(dir).await?;
                let (client, name) = (&self.client, name.as_bytes());
                let created = client.create(&self.cred, parent, name, FILE_MODE, flags);
                return created.await.map(|(_, file)| file);
            }
            let fid = self.find(dir, name).await?.attr.fid;
            self.client.open(&self.cred, fid, flags).await
        })?;
        Ok(Box::new(LibraryFile {
            subject: self,
            dir: dir.to_owned(),
            name: name.to_owned(),
            file,
        }))
    }

    fn drop_cache(&self, _dir: &str, _name: &str) -> Result<(), BenchError> {
        match &self.drop_caches {
            Some(drop_caches) => drop_caches(),
            None => Ok(()),
        }
    }
}

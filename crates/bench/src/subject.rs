//! What a load runs on: a directory of any mounted file system, or the client library without a kernel between.

use crate::BenchError;
use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;
use wire::{Errno, Fid};

/// A place where files can be made. Its methods block; each thread of a load calls them on its own directory.
pub trait Subject: Send + Sync {
    /// Its name in tables.
    fn name(&self) -> &str;
    /// Other processes that work for it.
    fn processes(&self) -> &[u32];
    /// Makes an empty directory for one thread.
    fn make_dir(&self, dir: &str) -> Result<(), BenchError>;
    /// Removes it; it is empty.
    fn remove_dir(&self, dir: &str) -> Result<(), BenchError>;
    /// Creates an empty file and closes it.
    fn create(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Asks for its attributes.
    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Unlinks it.
    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Writes `blocks` blocks one after the other into a new file, and fsyncs it.
    fn write(&self, dir: &str, name: &str, block: &Bytes, blocks: u64) -> Result<(), BenchError>;
    /// Reads a file from start to end in pieces of `block` bytes.
    fn read(&self, dir: &str, name: &str, block: usize) -> Result<u64, BenchError>;
    /// Drops what is cached of the file, as far as the subject can.
    fn forget(&self, dir: &str, name: &str) -> Result<(), BenchError>;
}

/// A directory.
pub struct PathSubject {
    /// Name in tables.
    pub name: String,
    /// Where.
    pub root: PathBuf,
    /// Processes that serve it.
    pub processes: Vec<u32>,
}

impl PathSubject {
    fn path(&self, dir: &str, name: &str) -> PathBuf {
        self.root.join(dir).join(name)
    }

    fn check<T>(
        &self,
        operation: &'static str,
        what: &str,
        result: std::io::Result<T>,
    ) -> Result<T, BenchError> {
        result.map_err(|e| failed(&self.name, operation, what, &e))
    }
}

fn failed(subject: &str, operation: &'static str, what: &str, why: &dyn std::fmt::Display) -> BenchError {
    BenchError::Operation {
        subject: subject.to_owned(),
        operation,
        what: what.to_owned(),
        why: why.to_string(),
    }
}

impl Subject for PathSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn processes(&self) -> &[u32] {
        &self.processes
    }

    fn make_dir(&self, dir: &str) -> Result<(), BenchError> {
        self.check("mkdir", dir, std::fs::create_dir(self.root.join(dir)))
    }

    fn remove_dir(&self, dir: &str) -> Result<(), BenchError> {
        self.check("rmdir", dir, std::fs::remove_dir(self.root.join(dir)))
    }

    fn create(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.path(dir, name));
        self.check("create", name, file).map(drop)
    }

    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.check("stat", name, std::fs::symlink_metadata(self.path(dir, name)))
            .map(drop)
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.check("unlink", name, std::fs::remove_file(self.path(dir, name)))
    }

    fn write(&self, dir: &str, name: &str, block: &Bytes, blocks: u64) -> Result<(), BenchError> {
        let write = || {
            let mut file = File::create(self.path(dir, name))?;
            (0..blocks).try_for_each(|_| file.write_all(block))?;
            file.sync_all()
        };
        self.check("write", name, write())
    }

    fn read(&self, dir: &str, name: &str, block: usize) -> Result<u64, BenchError> {
        let read = || {
            let mut file = File::open(self.path(dir, name))?;
            let mut buffer = vec![0; block];
            let mut total = 0;
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(total),
                    n => total += n as u64,
                }
            }
        };
        self.check("read", name, read())
    }

    fn forget(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let forget = || {
            let mut file = File::open(self.path(dir, name))?;
            file.seek(SeekFrom::Start(0))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(())
        };
        self.check("fadvise", name, forget())
    }
}

/// The client library: every thread blocks on its calls, as an MPI program would.
pub struct LibrarySubject {
    name: String,
    client: Arc<Client>,
    runtime: Handle,
    cred: Cred,
    processes: Vec<u32>,
    /// FIDs of the directories that the threads work in.
    dirs: RwLock<HashMap<String, Fid>>,
}

impl LibrarySubject {
    /// A mount, and the runtime that its calls run on.
    pub fn new(name: impl Into<String>, client: Arc<Client>, runtime: Handle) -> LibrarySubject {
        LibrarySubject {
            name: name.into(),
            client,
            runtime,
            cred: Cred::root(),
            dirs: RwLock::default(),
            processes: Vec::new(),
        }
    }

    /// The same, with processes that serve it beside this one.
    pub fn with_processes(self, processes: Vec<u32>) -> LibrarySubject {
        LibrarySubject { processes, ..self }
    }

    /// Runs a call and says what failed.
    fn run<T>(
        &self,
        operation: &'static str,
        what: &str,
        call: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, BenchError> {
        self.runtime
            .block_on(call)
            .map_err(|e| failed(&self.name, operation, what, &e))
    }

    fn dir(&self, dir: &str) -> Fid {
        self.dirs.read().get(dir).copied().unwrap_or(self.client.root())
    }
}

impl Subject for LibrarySubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn processes(&self) -> &[u32] {
        &self.processes
    }

    fn make_dir(&self, dir: &str) -> Result<(), BenchError> {
        let root = self.client.root();
        let made = self.run(
            "mkdir",
            dir,
            self.client.mkdir(&self.cred, root, dir.as_bytes(), 0o755),
        )?;
        self.dirs.write().insert(dir.to_owned(), made.attr.fid);
        Ok(())
    }

    fn remove_dir(&self, dir: &str) -> Result<(), BenchError> {
        self.dirs.write().remove(dir);
        self.run(
            "rmdir",
            dir,
            self.client.rmdir(&self.cred, self.client.root(), dir.as_bytes()),
        )
    }

    fn create(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let flags = OpenFlags {
            excl: true,
            ..OpenFlags::READ_WRITE
        };
        let parent = self.dir(dir);
        self.run("create", name, async {
            let (_, file) = self
                .client
                .create(&self.cred, parent, name.as_bytes(), 0o644, flags)
                .await?;
            self.client.release(&file).await
        })
    }

    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run(
            "stat",
            name,
            self.client.lookup(&self.cred, self.dir(dir), name.as_bytes()),
        )
        .map(drop)
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.run(
            "unlink",
            name,
            self.client.unlink(&self.cred, self.dir(dir), name.as_bytes()),
        )
    }

    fn write(&self, dir: &str, name: &str, block: &Bytes, blocks: u64) -> Result<(), BenchError> {
        let parent = self.dir(dir);
        self.run("write", name, async {
            let (_, file) = self
                .client
                .create(&self.cred, parent, name.as_bytes(), 0o644, OpenFlags::READ_WRITE)
                .await?;
            for i in 0..blocks {
                // A copy for each, as the kernel's way makes one.
                let copy = Bytes::copy_from_slice(block);
                self.client.write(&file, i * block.len() as u64, copy).await?;
            }
            self.client.fsync(&file, false).await?;
            self.client.release(&file).await
        })
    }

    fn read(&self, dir: &str, name: &str, block: usize) -> Result<u64, BenchError> {
        let parent = self.dir(dir);
        self.run("read", name, async {
            let found = self.client.lookup(&self.cred, parent, name.as_bytes()).await?;
            let file = self
                .client
                .open(&self.cred, found.attr.fid, OpenFlags::READ)
                .await?;
            let mut at = 0;
            loop {
                let data = self.client.read(&file, at, block).await?;
                let bytes: u64 = data.iter().map(|d| d.len() as u64).sum();
                if bytes == 0 {
                    break;
                }
                at += bytes;
            }
            self.client.release(&file).await?;
            Ok(at)
        })
    }

    fn forget(&self, _dir: &str, _name: &str) -> Result<(), BenchError> {
        // The library's cache is dropped with its locks only; a stream larger than it is read from the server.
        Ok(())
    }
}

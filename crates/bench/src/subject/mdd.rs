//! A metadata target's name space and store as a subject, called directly in this process: without
//! network, requests, locks and clients. In Lustre this is the MDD layer. The layouts of files name
//! objects that do not exist.

use super::{DataFile, DataMode, NewFile, Subject, errno_error, join_path, operation_error};
use crate::BenchError;
use bytes::Bytes;
use mdt::cred::Cred;
use mdt::layout::{self, StripeObject};
use mdt::namespace::{self, NewInode, OpenMode, RenameArgs, UnlinkArgs, xattr};
use mdt::store::{NameHash, S_IFDIR, Store};
use osd::Stores;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::runtime::Handle;
use wire::{Errno, FID_SEQ_NORMAL, Fid, MDS_FMODE_READ, MDS_FMODE_WRITE, OstIndex, RenameFlags, Text};

/// Type and permissions of new files.
const FILE_MODE: u32 = 0o100_644;
/// Type and permissions of new directories.
const DIR_MODE: u32 = 0o040_755;
/// Number of FIDs in a sequence, as in a client's sequences.
const SEQUENCE_WIDTH: u64 = 1 << 17;
/// The FID sequence of objects on OST 0; the sequence of OST i is `i << 16` higher.
const OBJECT_SEQUENCES: u64 = 0x1_0000_0000;
/// Number of directory entries to read at a time.
const ENTRIES_PER_READ: usize = 1024;

/// The name space of a metadata target, over a store of its own.
pub struct MddSubject {
    name: String,
    store: Store,
    runtime: Handle,
    cred: Cred,
    /// Number of the next file or directory.
    next_fid: AtomicU64,
    /// Number of the next object in a layout.
    next_object: AtomicU64,
    /// Stripe count of new files.
    stripes: AtomicU32,
    /// FIDs of directories by path.
    dirs: RwLock<HashMap<String, Fid>>,
}

impl MddSubject {
    /// Opens an empty store and creates the root directory. `runtime` runs the store's I/O.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, or the root directory cannot be created.
    pub fn open(
        name: impl Into<String>,
        store: &dyn Stores,
        runtime: Handle,
    ) -> Result<MddSubject, BenchError> {
        let name = name.into();
        let open_error = |reason: String| operation_error(&name, "open", "the store".to_owned(), &reason);
        let index = runtime
            .block_on(store.open_index())
            .map_err(|e| open_error(e.to_string()))?;
        let store = Store::new(index);
        runtime
            .block_on(namespace::make_root(&store, (0, 0), SystemTime::now().into()))
            .map_err(|e| open_error(e.to_string()))?;
        Ok(MddSubject {
            store,
            runtime,
            cred: Cred::root(),
            next_fid: AtomicU64::new(1),
            next_object: AtomicU64::new(1),
            stripes: AtomicU32::new(0),
            dirs: RwLock::default(),
            name,
        })
    }

    /// Converts the error of an operation on `dir/name`.
    fn convert_error<T>(
        &self,
        operation: &'static str,
        (dir, name): (&str, &str),
        result: Result<T, Errno>,
    ) -> Result<T, BenchError> {
        result.map_err(|e| errno_error(&self.name, operation, join_path(dir, name), e))
    }

    /// Waits for an operation on the store.
    fn wait<T>(&self, operation: impl Future<Output = T>) -> T {
        self.runtime.block_on(operation)
    }

    /// Waits while too much data is not yet on disk, as the target does before each change.
    fn throttle(&self) {
        self.wait(self.store.index().throttle());
    }

    /// The FID of a new file or directory.
    fn new_fid(&self) -> Fid {
        let number = self.next_fid.fetch_add(1, Ordering::Relaxed);
        Fid {
            f_seq: FID_SEQ_NORMAL + number / SEQUENCE_WIDTH,
            f_oid: (number % SEQUENCE_WIDTH) as u32 + 1,
            f_ver: 0,
        }
    }

    /// The FID of a directory, from the cache or by a path walk.
    fn dir_fid(&self, dir: &str) -> Result<Fid, Errno> {
        if let Some(fid) = self.dirs.read().get(dir) {
            return Ok(*fid);
        }
        let mut fid = Fid::ROOT;
        for name in dir.split('/').filter(|n| !n.is_empty()) {
            fid = self.find(fid, name)?;
        }
        self.dirs.write().insert(dir.to_owned(), fid);
        Ok(fid)
    }

    fn find(&self, dir: Fid, name: &str) -> Result<Fid, Errno> {
        let found = self.wait(namespace::lookup(&self.store, &self.cred, dir, name.as_bytes()))?;
        Ok(found.ok_or(Errno::ENOENT)?.fid)
    }

    /// A layout with the configured stripe count; empty if that is 0.
    fn layout(&self, fid: Fid) -> Bytes {
        let stripes = self.stripes.load(Ordering::Relaxed);
        if stripes == 0 {
            return Bytes::new();
        }
        let first = self.next_object.fetch_add(u64::from(stripes), Ordering::Relaxed);
        let objects: Vec<StripeObject> = (0..stripes)
            .map(|i| StripeObject {
                ost: OstIndex(i),
                fid: Fid {
                    f_seq: OBJECT_SEQUENCES | u64::from(i) << 16,
                    f_oid: (first / u64::from(stripes)) as u32,
                    f_ver: 0,
                },
            })
            .collect();
        layout::build(fid, 0, Text::default(), &objects)
    }

    fn create_entry(&self, dir: &str, name: &str, mode: u32, with_objects: bool) -> Result<Fid, Errno> {
        self.throttle();
        let fid = self.new_fid();
        let node = NewInode {
            fid,
            mode,
            time: SystemTime::now().into(),
            lov: if with_objects {
                self.layout(fid)
            } else {
                Bytes::new()
            },
            ..NewInode::default()
        };
        let (dir, name) = (self.dir_fid(dir)?, name.as_bytes());
        self.wait(namespace::create(&self.store, &self.cred, dir, name, &node))?;
        Ok(fid)
    }

    fn remove_entry(&self, dir: &str, name: &str, is_dir: bool) -> Result<(), Errno> {
        self.throttle();
        let unlink = UnlinkArgs {
            parent: self.dir_fid(dir)?,
            name: name.as_bytes(),
            is_rmdir: is_dir,
            time: SystemTime::now().into(),
        };
        self.wait(namespace::unlink(&self.store, &self.cred, unlink))
            .map(drop)
    }

    fn open_and_close(&self, fid: Fid, mode: OpenMode, created: Option<wire::Transno>) -> Result<(), Errno> {
        self.wait(async {
            namespace::open(&self.store, &self.cred, fid, mode, created).await?;
            namespace::close(&self.store, fid, mode, None).await.map(drop)
        })
    }

    /// The error of an operation that needs a complete file system.
    fn unsupported<T>(&self, operation: &'static str) -> Result<T, BenchError> {
        Err(errno_error(
            &self.name,
            operation,
            String::new(),
            Errno::EOPNOTSUPP,
        ))
    }
}

impl Subject for MddSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn processes(&self) -> &[u32] {
        &[]
    }

    fn enter(&self, dir: &str) -> Result<(), BenchError> {
        self.convert_error("lookup", (dir, ""), self.dir_fid(dir))
            .map(drop)
    }

    fn make_dir(&self, dir: &str, name: &str) -> Result<bool, BenchError> {
        if dir.is_empty() && name.is_empty() {
            return Ok(false);
        }
        match self.create_entry(dir, name, DIR_MODE, false) {
            Err(Errno::EEXIST) => Ok(false),
            result => self.convert_error("mkdir", (dir, name), result).map(|_| true),
        }
    }

    fn remove_dir(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.dirs.write().remove(&join_path(dir, name));
        self.convert_error("rmdir", (dir, name), self.remove_entry(dir, name, true))
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, bool)>, BenchError> {
        let list = || {
            let fid = self.dir_fid(dir)?;
            let mut all = Vec::new();
            let mut rows = self.wait(self.store.entries(fid, NameHash(0), ENTRIES_PER_READ))?;
            while let Some((_, last, _)) = rows.last().cloned() {
                all.extend(rows.iter().map(|(_, name, entry)| {
                    (String::from_utf8_lossy(name).into_owned(), entry.kind == S_IFDIR)
                }));
                rows = self.wait(self.store.entries_after(fid, &last, ENTRIES_PER_READ))?;
            }
            Ok(all)
        };
        self.convert_error("readdir", (dir, ""), list())
    }

    fn set_stripes(&self, _dir: &str, stripes: u16) -> Result<(), BenchError> {
        self.stripes.store(u32::from(stripes), Ordering::Relaxed);
        Ok(())
    }

    fn create(&self, dir: &str, name: &str, new: &NewFile) -> Result<(), BenchError> {
        if !new.data.is_empty() {
            return self.unsupported("write");
        }
        let create = || {
            let fid = self.create_entry(dir, name, FILE_MODE, !new.delayed)?;
            let mode = OpenMode(MDS_FMODE_READ | MDS_FMODE_WRITE);
            let created = wire::Transno(self.wait(self.store.inode(fid))?.version);
            self.open_and_close(fid, mode, Some(created))
        };
        self.convert_error("create", (dir, name), create())
    }

    fn mknod(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.convert_error(
            "mknod",
            (dir, name),
            self.create_entry(dir, name, FILE_MODE, false),
        )
        .map(drop)
    }

    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let stat = || {
            let fid = self.find(self.dir_fid(dir)?, name)?;
            self.wait(self.store.inode(fid))
        };
        self.convert_error("getattr", (dir, name), stat()).map(drop)
    }

    fn lookup(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let lookup = || self.find(self.dir_fid(dir)?, name);
        self.convert_error("lookup", (dir, name), lookup()).map(drop)
    }

    fn open(&self, dir: &str, name: &str, bytes: usize) -> Result<Bytes, BenchError> {
        if bytes > 0 {
            return self.unsupported("read");
        }
        let open = || {
            let fid = self.find(self.dir_fid(dir)?, name)?;
            self.open_and_close(fid, OpenMode(MDS_FMODE_READ), None)
        };
        self.convert_error("open", (dir, name), open())
            .map(|()| Bytes::new())
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<(), BenchError> {
        self.throttle();
        self.dirs.write().remove(&join_path(dir, from));
        let rename = || {
            let parent = self.dir_fid(dir)?;
            let args = RenameArgs {
                src_dir: parent,
                src_name: from.as_bytes(),
                dst_dir: parent,
                dst_name: to.as_bytes(),
                time: SystemTime::now().into(),
                flags: RenameFlags::NONE,
                whiteout: Fid::ZERO,
            };
            self.wait(namespace::rename(&self.store, &self.cred, args))
                .map(drop)
        };
        self.convert_error("rename", (dir, from), rename())
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.convert_error("unlink", (dir, name), self.remove_entry(dir, name, false))
    }

    fn set_xattr(&self, dir: &str, name: &str, xattr: &str, value: &[u8]) -> Result<(), BenchError> {
        self.throttle();
        let set = || {
            let args = xattr::SetxattrArgs {
                fid: self.find(self.dir_fid(dir)?, name)?,
                name: xattr.as_bytes(),
                value: Some(Bytes::copy_from_slice(value)),
                flags: 0,
                time: SystemTime::now().into(),
            };
            self.wait(xattr::setxattr(&self.store, &self.cred, &args))
                .map(drop)
        };
        self.convert_error("setxattr", (dir, name), set())
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.runtime
            .block_on(self.store.index().sync())
            .map_err(|e| operation_error(&self.name, "sync", String::new(), &e.to_string()))
    }

    fn open_data(&self, _dir: &str, _name: &str, _: DataMode) -> Result<Box<dyn DataFile + '_>, BenchError> {
        self.unsupported("open for data")
    }

    fn drop_cache(&self, _dir: &str, _name: &str) -> Result<(), BenchError> {
        Ok(())
    }
}

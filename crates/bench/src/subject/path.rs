//! A directory of a mounted file system, accessed through the kernel.

use super::{DataFile, DataMode, DropCaches, NewFile, READ_BACK_DIFFERS, Subject, object_name};
use crate::BenchError;
use bytes::Bytes;
use mdt::layout::StripeRequest;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, XattrFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Permissions of new files, as in mdtest.
const FILE_MODE: u32 = 0o664;
/// Permissions of new directories.
const DIR_MODE: u32 = 0o775;
/// `f_type` of FUSE, from statfs(2).
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// Lustre's `O_LOV_DELAY_CREATE`; other file systems ignore it.
const DELAY_CREATE: i32 = (OFlags::NOCTTY.bits() | O_ASYNC) as i32;
/// `O_ASYNC`. open(2) itself ignores the flag, but passes it to the file system.
const O_ASYNC: u32 = 0o20000;

/// A directory as a subject.
pub struct PathSubject {
    /// The subject's name in tables and errors.
    pub name: String,
    /// The path of the directory.
    pub root: PathBuf,
    /// Ids of the processes that serve the file system.
    pub processes: Vec<u32>,
    /// Drops the data in the caches of these processes and in the page cache of their host.
    pub drop_caches: Option<DropCaches>,
}

impl PathSubject {
    fn path(&self, dir: &str, name: &str) -> PathBuf {
        self.root.join(dir).join(name)
    }

    /// The command `lfs` for a new path: that of this program on a FUSE mount, else Lustre's.
    fn lfs_for(path: &Path) -> io::Result<Command> {
        let parent = path.parent().unwrap_or(path);
        match rustix::fs::statfs(parent)?.f_type == FUSE_SUPER_MAGIC {
            true => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("lfs");
                Ok(command)
            }
            false => Ok(Command::new("lfs")),
        }
    }

    /// Converts the error of an operation on `dir/name`.
    fn convert_error<T>(
        &self,
        operation: &'static str,
        (dir, name): (&str, &str),
        result: io::Result<T>,
    ) -> Result<T, BenchError> {
        result.map_err(|e| BenchError::Operation {
            subject: self.name.clone(),
            operation,
            object: object_name(dir, name),
            reason: e.to_string(),
            errno: e.raw_os_error().unwrap_or(0),
        })
    }

    fn create_file(&self, dir: &str, name: &str, new: &NewFile) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .read(new.read_back)
            .write(true)
            .create(true)
            .create_new(new.exclusive)
            .mode(FILE_MODE)
            .custom_flags(if new.delayed { DELAY_CREATE } else { 0 })
            .open(self.path(dir, name))?;
        file.write_all(&new.data)?;
        if new.sync {
            file.sync_all()?;
        }
        if new.read_back {
            let mut data_read = vec![0; new.data.len()];
            file.seek(SeekFrom::Start(0))?;
            file.read_exact(&mut data_read)?;
            if data_read != new.data {
                return Err(io::Error::other(READ_BACK_DIFFERS));
            }
        }
        Ok(())
    }
}

/// An open file.
struct PathFile<'a> {
    subject: &'a PathSubject,
    dir: String,
    name: String,
    file: File,
}

impl PathFile<'_> {
    fn convert_error<T>(&self, operation: &'static str, result: io::Result<T>) -> Result<T, BenchError> {
        self.subject
            .convert_error(operation, (&self.dir, &self.name), result)
    }
}

impl DataFile for PathFile<'_> {
    fn write_at(&self, offset: u64, data: &Bytes) -> Result<(), BenchError> {
        self.convert_error("write", self.file.write_all_at(data, offset))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, BenchError> {
        let mut len = 0;
        while len < into.len() {
            let read = self.file.read_at(&mut into[len..], offset + len as u64);
            match self.convert_error("read", read)? {
                0 => break,
                n => len += n,
            }
        }
        Ok(len)
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.convert_error("fsync", self.file.sync_all())
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        drop(self.file);
        Ok(())
    }
}

impl Subject for PathSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn processes(&self) -> &[u32] {
        &self.processes
    }

    fn enter(&self, dir: &str) -> Result<(), BenchError> {
        self.convert_error("stat", (dir, ""), std::fs::metadata(self.root.join(dir)))
            .map(drop)
    }

    fn make_dir(&self, dir: &str, name: &str) -> Result<bool, BenchError> {
        let result = std::fs::DirBuilder::new()
            .mode(DIR_MODE)
            .create(self.path(dir, name));
        match result {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            result => self.convert_error("mkdir", (dir, name), result).map(|()| true),
        }
    }

    fn make_dir_on(&self, dir: &str, name: &str, mdt: u32) -> Result<bool, BenchError> {
        let path = self.path(dir, name);
        if mdt == 0 || path.is_dir() {
            return self.make_dir(dir, name);
        }
        let created = PathSubject::lfs_for(&path)
            .and_then(|mut lfs| lfs.args(["mkdir", "-i", &mdt.to_string()]).arg(&path).output());
        let created = created.and_then(|out| match out.status.success() {
            true => Ok(true),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&out.stderr).trim().to_owned(),
            )),
        });
        self.convert_error("lfs mkdir", (dir, name), created)
    }

    fn remove_dir(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.convert_error("rmdir", (dir, name), std::fs::remove_dir(self.path(dir, name)))
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, bool)>, BenchError> {
        let list = || {
            let entries = std::fs::read_dir(self.root.join(dir))?;
            entries
                .map(|entry| {
                    let entry = entry?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    Ok((name, entry.file_type()?.is_dir()))
                })
                .collect()
        };
        self.convert_error("readdir", (dir, ""), list())
    }

    fn set_stripes(&self, dir: &str, stripes: u16) -> Result<(), BenchError> {
        let request = StripeRequest {
            stripe_count: stripes,
            ..StripeRequest::default()
        };
        let set = rustix::fs::setxattr(
            self.root.join(dir),
            "lustre.lov",
            &request.to_default_layout(),
            XattrFlags::empty(),
        );
        self.convert_error("setstripe", (dir, ""), set.map_err(io::Error::from))
    }

    fn create(&self, dir: &str, name: &str, new: &NewFile) -> Result<(), BenchError> {
        self.convert_error("create", (dir, name), self.create_file(dir, name, new))
    }

    fn mknod(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let result = rustix::fs::mknodat(
            CWD,
            self.path(dir, name),
            FileType::RegularFile,
            Mode::from_raw_mode(FILE_MODE),
            0,
        );
        self.convert_error("mknod", (dir, name), result.map_err(io::Error::from))
    }

    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let stat = rustix::fs::statat(CWD, self.path(dir, name), AtFlags::empty());
        self.convert_error("stat", (dir, name), stat.map(drop).map_err(io::Error::from))
    }

    fn lookup(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        // O_PATH only resolves the name.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::open(self.path(dir, name), flags, Mode::empty());
        self.convert_error("lookup", (dir, name), found.map(drop).map_err(io::Error::from))
    }

    fn open(&self, dir: &str, name: &str, bytes: usize) -> Result<Bytes, BenchError> {
        let read = || {
            let mut file = File::open(self.path(dir, name))?;
            let mut data = vec![0; bytes];
            let mut len = 0;
            while len < bytes {
                match file.read(&mut data[len..])? {
                    0 => break,
                    n => len += n,
                }
            }
            data.truncate(len);
            Ok(data.into())
        };
        self.convert_error("open", (dir, name), read())
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<(), BenchError> {
        let renamed = std::fs::rename(self.path(dir, from), self.path(dir, to));
        self.convert_error("rename", (dir, from), renamed)
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        self.convert_error("unlink", (dir, name), std::fs::remove_file(self.path(dir, name)))
    }

    fn set_xattr(&self, dir: &str, name: &str, xattr: &str, value: &[u8]) -> Result<(), BenchError> {
        let set = rustix::fs::setxattr(self.path(dir, name), xattr, value, XattrFlags::empty());
        self.convert_error("setxattr", (dir, name), set.map_err(io::Error::from))
    }

    fn sync(&self) -> Result<(), BenchError> {
        let sync = || rustix::fs::syncfs(File::open(&self.root)?).map_err(io::Error::from);
        self.convert_error("sync", ("", ""), sync())
    }

    fn open_data(&self, dir: &str, name: &str, mode: DataMode) -> Result<Box<dyn DataFile + '_>, BenchError> {
        let direct = if mode.direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(mode.write)
            .create(mode.write)
            .truncate(false)
            .mode(FILE_MODE)
            .custom_flags(direct.bits() as i32)
            .open(self.path(dir, name));
        let file = self.convert_error("open", (dir, name), opened)?;
        Ok(Box::new(PathFile {
            subject: self,
            dir: dir.to_owned(),
            name: name.to_owned(),
            file,
        }))
    }

    fn drop_cache(&self, dir: &str, name: &str) -> Result<(), BenchError> {
        let drop_cache = || {
            let mut file = File::open(self.path(dir, name))?;
            file.seek(SeekFrom::Start(0))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(())
        };
        self.convert_error("fadvise", (dir, name), drop_cache())?;
        match &self.drop_caches {
            Some(drop_caches) => drop_caches(),
            None => Ok(()),
        }
    }
}

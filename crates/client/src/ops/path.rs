//! Path resolution for front ends without a kernel: `.` and `..`, symbolic links, search
//! permission.
//!
//! Paths start at the mount's root, with or without a leading `/`; so does an absolute target of a
//! symbolic link. `..` does not lead above the root. The walk needs only the LOOKUP locks of the
//! directories in a path, so changes in these directories do not slow it down.

use crate::attr::{S_IFDIR, S_IFLNK, S_IFMT};
use crate::client::Client;
use crate::cred::Cred;
use crate::ops::lookup::check_name;
use crate::perm;
use wire::{Errno, Fid};

/// Largest length of a path, in bytes.
const PATH_MAX: usize = 4095;
/// Largest number of symbolic links in one path.
const LINKS_MAX: u32 = 40;

/// The end of a path: a name in a directory. The name need not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastName<'p> {
    /// The directory.
    pub parent: Fid,
    /// The name.
    pub name: &'p [u8],
    /// Whether a `/` follows: the name must then be the name of a directory.
    pub must_be_dir: bool,
}

impl Client {
    /// Resolves a path to a file and its type (`S_IFMT`). `follow`: also follows a symbolic link at
    /// the end.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, or an error of a server.
    pub async fn walk(&self, cred: &Cred, path: &[u8], follow: bool) -> Result<(Fid, u32), Errno> {
        self.walker(cred, path)?.resolve(path, follow).await
    }

    /// Resolves all but the last name of a path. `None`: the path ends with `.`, `..` or at the
    /// root.
    ///
    /// # Errors
    ///
    /// As [`Client::walk`].
    pub async fn walk_to_name<'p>(&self, cred: &Cred, path: &'p [u8]) -> Result<Option<LastName<'p>>, Errno> {
        let mut walk = self.walker(cred, path)?;
        let last = walk.resolve_parent(path).await?;
        Ok(last.map(|name| LastName {
            parent: walk.current_dir(),
            name,
            must_be_dir: path.ends_with(b"/"),
        }))
    }

    /// As [`Client::walk_to_name`], but follows a symbolic link at the end of the path, and returns
    /// the directory and the name of its target.
    ///
    /// # Errors
    ///
    /// As [`Client::walk`].
    pub async fn walk_to_final_name(
        &self,
        cred: &Cred,
        path: &[u8],
    ) -> Result<Option<(Fid, Vec<u8>)>, Errno> {
        let mut walk = self.walker(cred, path)?;
        let mut path = path.to_vec();
        loop {
            let Some(name) = walk.resolve_parent(&path).await? else {
                return Ok(None);
            };
            match walk.child(name).await {
                Ok((link, S_IFLNK)) => path = walk.target(link).await?,
                Ok(_) | Err(Errno::ENOENT) => return Ok(Some((walk.current_dir(), name.to_vec()))),
                Err(e) => return Err(e),
            }
        }
    }

    /// Checks that the caller has the permissions `wanted`: a sum of 4 (read), 2 (write) and 1
    /// (execute or search).
    ///
    /// # Errors
    ///
    /// `EACCES`; or an error of a server.
    pub async fn access(&self, cred: &Cred, fid: Fid, wanted: u32) -> Result<(), Errno> {
        perm::check(cred, &self.md(cred, fid).await?, wanted)
    }

    /// A path resolution that starts at the root. Checks the length of the path.
    fn walker<'c>(&'c self, cred: &'c Cred, path: &[u8]) -> Result<PathWalk<'c>, Errno> {
        match path.len() {
            0 => Err(Errno::ENOENT),
            len if len > PATH_MAX => Err(Errno::ENAMETOOLONG),
            _ => Ok(PathWalk {
                client: self,
                cred,
                ancestors: Vec::new(),
                links: 0,
            }),
        }
    }

    /// Checks search permission in a directory by its last known attributes. If these deny it,
    /// checks again with current attributes. If outdated attributes grant the permission, the
    /// server denies the request that follows.
    async fn check_search(&self, cred: &Cred, dir: Fid) -> Result<(), Errno> {
        if cred.uid == 0 {
            return Ok(());
        }
        match self.inodes.last_known_attr(dir) {
            Some(md) if perm::check(cred, &md, perm::EXECUTE).is_ok() => Ok(()),
            _ => self.access(cred, dir, perm::EXECUTE).await,
        }
    }

    /// The file of a name in a directory, and its type.
    async fn find_child(&self, cred: &Cred, dir: Fid, name: &[u8]) -> Result<(Fid, u32), Errno> {
        check_name(name)?;
        self.check_search(cred, dir).await?;
        let resolved = self.resolve_name(cred, dir, name).await?;
        let fid = resolved.fid;
        let attr = match resolved.md.or_else(|| self.inodes.last_known_attr(fid)) {
            Some(md) => md.attr,
            // Requests the attributes; the name may lead to another file by then.
            None => self.lookup(cred, dir, name).await?.attr,
        };
        Ok((attr.fid, attr.mode & S_IFMT))
    }
}

/// The state of a path resolution.
struct PathWalk<'c> {
    client: &'c Client,
    cred: &'c Cred,
    /// The directories below the root down to the current one.
    ancestors: Vec<Fid>,
    /// Symbolic links followed so far.
    links: u32,
}

impl PathWalk<'_> {
    fn current_dir(&self) -> Fid {
        self.ancestors.last().copied().unwrap_or(self.client.root())
    }

    async fn child(&self, name: &[u8]) -> Result<(Fid, u32), Errno> {
        self.client.find_child(self.cred, self.current_dir(), name).await
    }

    /// Resolves all names but the last, and returns the last. `None`: the path ends with `.`, `..`
    /// or at the root.
    async fn resolve_parent<'p>(&mut self, path: &'p [u8]) -> Result<Option<&'p [u8]>, Errno> {
        if path.starts_with(b"/") {
            self.ancestors.clear();
        }
        let mut rest = path;
        while let Some(name) = next_name(&mut rest) {
            let is_last = rest.iter().all(|b| *b == b'/');
            match name {
                b"." => self.client.check_search(self.cred, self.current_dir()).await?,
                b".." => {
                    self.client.check_search(self.cred, self.current_dir()).await?;
                    self.ancestors.pop();
                }
                last if is_last => return Ok(Some(last)),
                name => self.enter(name).await?,
            }
        }
        Ok(None)
    }

    /// Makes the directory of a name the current one; follows a symbolic link.
    async fn enter(&mut self, name: &[u8]) -> Result<(), Errno> {
        match self.child(name).await? {
            (dir, S_IFDIR) => self.ancestors.push(dir),
            (link, S_IFLNK) => {
                let target = self.target(link).await?;
                let (_, kind) = Box::pin(self.resolve(&target, true)).await?;
                if kind != S_IFDIR {
                    return Err(Errno::ENOTDIR);
                }
            }
            _ => return Err(Errno::ENOTDIR),
        }
        Ok(())
    }

    /// Resolves the whole path; returns the file and its type. A directory becomes the current one.
    async fn resolve(&mut self, path: &[u8], follow: bool) -> Result<(Fid, u32), Errno> {
        let Some(name) = self.resolve_parent(path).await? else {
            return Ok((self.current_dir(), S_IFDIR));
        };
        let must_be_dir = path.ends_with(b"/");
        let (mut fid, mut kind) = self.child(name).await?;
        if kind == S_IFDIR {
            self.ancestors.push(fid);
        } else if kind == S_IFLNK && (follow || must_be_dir) {
            let target = self.target(fid).await?;
            (fid, kind) = Box::pin(self.resolve(&target, true)).await?;
        }
        if must_be_dir && kind != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        Ok((fid, kind))
    }

    /// Reads a symbolic link and counts it. `ELOOP`: the path has over [`LINKS_MAX`] links.
    async fn target(&mut self, link: Fid) -> Result<Vec<u8>, Errno> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP);
        }
        Ok(self.client.readlink(self.cred, link).await?.to_vec())
    }
}

/// Removes the first name of a path and returns it.
fn next_name<'p>(path: &mut &'p [u8]) -> Option<&'p [u8]> {
    let start = path.iter().position(|b| *b != b'/')?;
    let (_, from) = path.split_at_checked(start)?;
    let end = from.iter().position(|b| *b == b'/').unwrap_or(from.len());
    let (name, rest) = from.split_at_checked(end)?;
    *path = rest;
    Some(name)
}

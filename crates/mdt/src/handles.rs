//! The open files of a client. A client names an open file by its handle, a 64-bit cookie.

use cpt::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use wire::{Errno, Fid};

use crate::namespace::OpenMode;

/// Maximum number of open files per client.
const FILES_PER_CLIENT: usize = 1 << 20;

/// One open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    /// The FID of the inode.
    pub fid: Fid,
    /// The mode of the open.
    pub mode: OpenMode,
}

/// The open files of one client, stored with its export.
#[derive(Default)]
pub(crate) struct Handles {
    /// Open files by cookie.
    files: Mutex<HashMap<u64, OpenFile>>,
}

/// The bit that cookies of open files have and lock handles lack ([`ldlm::LockId`]).
const FILE_COOKIE_BIT: u64 = 1 << 63;

/// Whether a handle is an open file's cookie; otherwise it is a lock's handle.
pub(crate) fn is_file_handle(handle: u64) -> bool {
    handle & FILE_COOKIE_BIT != 0
}

/// The position of the target's epoch in a cookie: each start of the target has 2^40 cookies.
const EPOCH_SHIFT: u32 = 40;

/// Allocates the cookies of open files. A cookie is not 0, and no later start of the target reuses
/// it.
pub(crate) struct Cookies {
    next: AtomicU64,
    /// The first cookie of this start.
    first: u64,
}

impl Cookies {
    /// The cookies for one start of the target; `epoch` is unique to the start.
    pub(crate) fn new(epoch: u64) -> Cookies {
        let first = FILE_COOKIE_BIT | epoch << EPOCH_SHIFT | 1;
        Cookies {
            next: first.into(),
            first,
        }
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether an earlier start of the target may have allocated a cookie.
    fn is_of_earlier_start(&self, cookie: u64) -> bool {
        is_file_handle(cookie) && cookie < self.first
    }
}

impl Handles {
    /// All open files.
    pub(crate) fn all(&self) -> Vec<OpenFile> {
        self.files.lock().values().copied().collect()
    }

    /// Adds an open file and returns its cookie. `EMFILE` if the client has [`FILES_PER_CLIENT`]
    /// open files.
    pub(crate) fn add(&self, cookies: &Cookies, file: OpenFile) -> Result<u64, Errno> {
        let mut files = self.files.lock();
        if files.len() >= FILES_PER_CLIENT {
            return Err(Errno::EMFILE);
        }
        let cookie = cookies.next();
        files.insert(cookie, file);
        Ok(cookie)
    }

    /// Like [`Handles::add`], for a file that the client opens again after a restart: if possible,
    /// the handle keeps its cookie `old`, because further requests may name it.
    pub(crate) fn add_again(&self, cookies: &Cookies, old: u64, file: OpenFile) -> Result<u64, Errno> {
        let mut files = self.files.lock();
        if !cookies.is_of_earlier_start(old) || files.len() >= FILES_PER_CLIENT || files.contains_key(&old) {
            drop(files);
            return self.add(cookies, file);
        }
        files.insert(old, file);
        Ok(old)
    }

    /// The open file with a cookie.
    pub(crate) fn get(&self, cookie: u64) -> Option<OpenFile> {
        self.files.lock().get(&cookie).copied()
    }

    /// Whether any open file meets a condition.
    pub(crate) fn any(&self, condition: impl Fn(&OpenFile) -> bool) -> bool {
        self.files.lock().values().any(condition)
    }

    /// The union of the modes with which the client has a file open.
    pub(crate) fn combined_mode(&self, fid: Fid) -> OpenMode {
        let files = self.files.lock();
        let modes = files
            .values()
            .filter(|open| open.fid == fid)
            .map(|open| open.mode.0);
        OpenMode(modes.fold(0, |all, mode| all | mode))
    }

    /// Removes the handle with a cookie, and returns its open file.
    pub(crate) fn remove(&self, cookie: u64) -> Option<OpenFile> {
        self.files.lock().remove(&cookie)
    }

    /// Removes all handles, and returns their open files.
    pub(crate) fn drain(&self) -> Vec<OpenFile> {
        std::mem::take(&mut *self.files.lock()).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Cookies, Handles, OpenFile};
    use crate::namespace::OpenMode;
    use wire::Fid;

    #[test]
    fn only_a_free_cookie_of_an_earlier_start_is_kept() {
        let file = OpenFile {
            fid: Fid::ROOT,
            mode: OpenMode(1),
        };
        let old = Handles::default().add(&Cookies::new(3), file).unwrap();
        let (cookies, handles) = (Cookies::new(5), Handles::default());
        assert_eq!(handles.add_again(&cookies, old, file).unwrap(), old);
        let second = handles.add_again(&cookies, old, file).unwrap();
        // A client invents cookies: that of a lock, and one that this start may allocate later.
        for invented in [old, 7, second + 1] {
            assert_ne!(handles.add_again(&cookies, invented, file).unwrap(), invented);
        }
        assert_eq!(handles.drain().len(), 5);
    }
}

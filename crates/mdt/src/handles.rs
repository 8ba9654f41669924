//! Open files of one client: the handles that its opens were answered with.

use foldhash::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use wire::{Errno, Fid};

use crate::namespace::OpenMode;

/// Open files of one client at most.
const PER_CLIENT: usize = 1 << 20;

/// One open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    /// The inode.
    pub fid: Fid,
    /// How it is open.
    pub mode: OpenMode,
}

/// The open files of one client, kept with its export.
#[derive(Default)]
pub(crate) struct Handles {
    files: Mutex<HashMap<u64, OpenFile>>,
}

/// What the cookies of open files have and the handles of locks have not ([`ldlm::LockId`]).
const OF_A_FILE: u64 = 1 << 63;

/// Whether a handle that a client gives up is an open file's, not a lock's.
pub(crate) fn is_of_a_file(handle: u64) -> bool {
    handle & OF_A_FILE != 0
}

/// Where cookies come from: never 0, never the same twice, also over restarts.
pub(crate) struct Cookies(AtomicU64);

impl Cookies {
    /// The cookies of this start of the target.
    pub(crate) fn new(epoch: u64) -> Cookies {
        Cookies(AtomicU64::new(OF_A_FILE | epoch << 40 | 1))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Handles {
    /// A handle for a file that was opened.
    pub(crate) fn add(&self, cookies: &Cookies, file: OpenFile) -> Result<u64, Errno> {
        let mut files = self.files.lock();
        if files.len() >= PER_CLIENT {
            return Err(Errno::EMFILE);
        }
        let cookie = cookies.next();
        files.insert(cookie, file);
        Ok(cookie)
    }

    /// What a handle is of.
    pub(crate) fn get(&self, cookie: u64) -> Option<OpenFile> {
        self.files.lock().get(&cookie).copied()
    }

    /// Whether any handle is such.
    pub(crate) fn any(&self, such: impl Fn(&OpenFile) -> bool) -> bool {
        self.files.lock().values().any(such)
    }

    /// How a file is open: the flags of all handles together.
    pub(crate) fn modes_of(&self, fid: Fid) -> OpenMode {
        let files = self.files.lock();
        let modes = files
            .values()
            .filter(|open| open.fid == fid)
            .map(|open| open.mode.0);
        OpenMode(modes.fold(0, |all, mode| all | mode))
    }

    /// Takes a handle away.
    pub(crate) fn remove(&self, cookie: u64) -> Option<OpenFile> {
        self.files.lock().remove(&cookie)
    }

    /// Takes all handles away: the client is gone.
    pub(crate) fn drain(&self) -> Vec<OpenFile> {
        std::mem::take(&mut *self.files.lock()).into_values().collect()
    }
}

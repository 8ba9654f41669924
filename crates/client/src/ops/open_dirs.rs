//! Directories that programs have open.
//!
//! The client locks an open directory but does not open it on the server. When a client removes the
//! directory, the server destroys it at once. A program with an open handle can still read the
//! attributes, and finds the directory empty.

use crate::attr::Attr;
use cpt::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use wire::Fid;

/// The open directories with their attributes.
#[derive(Default)]
pub(crate) struct OpenDirs(Mutex<HashMap<Fid, OpenDir>>);

struct OpenDir {
    /// Number of open handles.
    handles: usize,
    /// The attributes of the last reply.
    attr: Attr,
}

/// An open handle on a directory. Dropping it closes the handle.
pub(crate) struct OpenDirGuard {
    dirs: Arc<OpenDirs>,
    fid: Fid,
}

impl OpenDirs {
    /// Opens a directory with these attributes.
    pub(crate) fn add(self: &Arc<OpenDirs>, attr: &Attr) -> OpenDirGuard {
        let mut all = self.0.lock();
        let open = all.entry(attr.fid).or_insert_with(|| OpenDir {
            handles: 0,
            attr: attr.clone(),
        });
        open.handles += 1;
        open.attr = attr.clone();
        OpenDirGuard {
            dirs: self.clone(),
            fid: attr.fid,
        }
    }

    /// Updates a directory's attributes if it is open.
    pub(crate) fn update(&self, attr: &Attr) {
        if let Some(open) = self.0.lock().get_mut(&attr.fid) {
            open.attr = attr.clone();
        }
    }

    /// The last attributes of a removed directory that is open here, with link count 0.
    pub(crate) fn attr_of_removed(&self, fid: Fid) -> Option<Attr> {
        let all = self.0.lock();
        Some(Attr {
            nlink: 0,
            ..all.get(&fid)?.attr.clone()
        })
    }
}

impl Drop for OpenDirGuard {
    fn drop(&mut self) {
        let mut all = self.dirs.0.lock();
        if let Some(open) = all.get_mut(&self.fid) {
            open.handles -= 1;
            if open.handles == 0 {
                all.remove(&self.fid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OpenDirs;
    use crate::attr::Attr;
    use std::sync::Arc;
    use wire::Fid;

    #[test]
    fn attributes_of_a_removed_directory_are_known_until_the_last_close() {
        let all = Arc::new(OpenDirs::default());
        let attr = Attr {
            fid: Fid::ROOT,
            nlink: 2,
            ..Attr::default()
        };
        let (first, second) = (all.add(&attr), all.add(&attr));
        all.update(&Attr { uid: 7, ..attr });
        drop(first);
        let removed = all.attr_of_removed(Fid::ROOT).unwrap_or_default();
        assert_eq!((removed.nlink, removed.uid), (0, 7));
        drop(second);
        assert_eq!(all.attr_of_removed(Fid::ROOT), None);
    }
}

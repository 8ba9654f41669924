//! Names that this client itself makes and removes, in a directory whose lock it may keep meanwhile
//! ([`wire::LockTerms::Nacre`]).
//!
//! What is asked for while a change is under way may have it or not. So attributes and entries of the directory are kept
//! only if no change was under way from before they were asked for until they are kept; what was kept before is dropped
//! when a change begins.

use super::{Inode, Inodes};
use crate::attr::{Attr, MdAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fid;

/// A point between the changes that a mount makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// Counts the changes of a mount.
#[derive(Debug, Default)]
pub(crate) struct Changes(AtomicU64);

impl Changes {
    /// Now.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Acquire))
    }

    /// A moment later than all before.
    pub(crate) fn next(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

/// The changes of one directory.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    under_way: usize,
    last: Moment,
}

impl Changed {
    /// Of a directory of which nothing is known from before this moment.
    pub(crate) fn since(last: Moment) -> Changed {
        Changed { under_way: 0, last }
    }

    /// When the last one began or ended.
    pub(crate) fn last(&self) -> Moment {
        self.last
    }

    /// Whether a change is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether this one, which began at that moment, is the only one since.
    pub(crate) fn only(&self, began: Moment) -> bool {
        self.under_way == 1 && self.last == began
    }

    /// Whether what was asked for at this moment is as the directory is now, as far as this client goes.
    pub(crate) fn none_since(&self, asked: Moment) -> bool {
        self.under_way == 0 && self.last <= asked
    }

    /// One begins.
    pub(crate) fn begin(&mut self, now: Moment) {
        self.under_way += 1;
        self.last = now;
    }

    /// One has ended.
    pub(crate) fn end(&mut self, now: Moment) {
        self.under_way -= 1;
        self.last = now;
    }
}

/// A change that is under way. One that is never said to have ended (its request may still be on its way, though nobody
/// waits for it any more) keeps what is learnt of the directory from being kept.
#[must_use]
pub(crate) struct Changing {
    dir: Fid,
    began: Moment,
    /// The lock under which the directory's attributes were known when it began.
    under: Option<u64>,
    inodes: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Changing {
    pub(super) fn new(
        dir: Fid,
        began: Moment,
        under: Option<u64>,
        inodes: Arc<Inodes>,
        inode: Arc<Inode>,
    ) -> Changing {
        Changing {
            dir,
            began,
            under,
            inodes,
            inode,
        }
    }

    /// The directory that is changed.
    pub(crate) fn dir(&self) -> Fid {
        self.dir
    }

    /// Whether the directory's attributes were known under this lock when it began.
    pub(crate) fn is_under(&self, cookie: u64) -> bool {
        self.under == Some(cookie)
    }

    /// It was answered.
    pub(crate) fn ended(self) {
        self.inodes.ended(self.dir, self.inode, |_| ());
    }

    /// It was answered with the directory's attributes. They are kept where no other change was under way. Called with a lock
    /// on them held.
    pub(crate) fn ended_with(self, attr: Attr) {
        self.inodes.ended(self.dir, self.inode, |s| {
            if s.changed.only(self.began)
                && let Some((were, _)) = s.were.take()
            {
                s.md = Some(MdAttr { attr, ..were });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Changed, Changes};

    #[test]
    fn what_was_asked_for_before_or_during_a_change_is_not_kept() {
        let (changes, mut dir) = (Changes::default(), Changed::default());
        let before = changes.now();
        assert!(dir.none_since(before));
        dir.begin(changes.next());
        dir.begin(changes.next());
        let during = changes.now();
        dir.end(changes.next());
        assert!(!dir.none_since(changes.now()), "the other one is under way");
        dir.end(changes.next());
        assert!(!dir.none_since(before) && !dir.none_since(during));
        assert!(dir.none_since(changes.now()));
        assert!(!Changed::since(changes.next()).none_since(during));
    }
}

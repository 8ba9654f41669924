//! This client's own changes of names in a directory whose lock it may keep meanwhile
//! ([`wire::LockTerms::Nacre`]).
//!
//! A reply to a request sent during a change may or may not include the change. So attributes and
//! entries of the directory are cached only if no change was in progress from the request until the
//! reply. Older cached state is not used during a change. When the change ends, it is dropped,
//! unless the change had no effect.

use super::{Inode, InodeState, Inodes};
use crate::attr::{Attr, MdAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fid;

/// A point in the sequence of a mount's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(super) u64);

/// Counts the changes of a mount.
#[derive(Debug, Default)]
pub(crate) struct Changes(AtomicU64);

impl Changes {
    /// The current stamp.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Acquire))
    }

    /// A stamp later than all before.
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
    /// The state of a directory whose entry was pruned at `last`.
    pub(crate) fn since(last: Moment) -> Changed {
        Changed { under_way: 0, last }
    }

    /// The stamp of the last begin or end of a change.
    pub(crate) fn last(&self) -> Moment {
        self.last
    }

    /// Whether a change is in progress.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether the change that began at `began` is the only one since.
    pub(crate) fn only(&self, began: Moment) -> bool {
        self.under_way == 1 && self.last == began
    }

    /// Whether this client has not changed the directory since a request sent at that stamp.
    pub(crate) fn none_since(&self, asked: Moment) -> bool {
        self.under_way == 0 && self.last <= asked
    }

    /// A change begins.
    pub(crate) fn begin(&mut self, now: Moment) {
        self.under_way += 1;
        self.last = now;
    }

    /// A change has ended.
    pub(crate) fn end(&mut self, now: Moment) {
        self.under_way -= 1;
        self.last = now;
    }
}

/// The tasks to which the kernel returned a directory's attributes, which it then caches. The
/// kernel may store such an answer late: after a change by another task, of which it has already
/// updated its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shown {
    #[default]
    ToNobody,
    To(u32),
    ToSeveral,
}

impl Shown {
    /// Adds a task. Task 0 is unknown and counts as any.
    pub(crate) fn to(&mut self, task: u32) {
        *self = match *self {
            Shown::ToNobody if task != 0 => Shown::To(task),
            Shown::To(same) if same == task => Shown::To(task),
            _ => Shown::ToSeveral,
        };
    }

    /// Whether another task than this one may have received them. A task sends its next request
    /// only after the kernel has stored the answer to the one before.
    fn to_others_than(self, task: u32) -> bool {
        match self {
            Shown::ToNobody => false,
            Shown::To(one) => one != task,
            Shown::ToSeveral => true,
        }
    }
}

/// A change in progress. Until it is finished, no state learned of the directory is cached.
#[must_use]
pub(crate) struct Changing {
    dir: Fid,
    /// The task that makes the change.
    by: u32,
    began: Moment,
    /// The cookie of the lock that covered the directory's attributes when the change began.
    under: Option<u64>,
    /// Whether attributes were cached when the change began.
    kept: bool,
    inodes: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Inodes {
    /// Begins a change of names in a directory by a task. `under` is the cookie of the lock on the
    /// directory's attributes, if there is one; the name `made` may exist from now on.
    pub(crate) fn begin(
        self: &Arc<Inodes>,
        (dir, by): (Fid, u32),
        made: Option<&[u8]>,
        under: Option<u64>,
    ) -> Changing {
        let inode = self.entry(dir);
        let (began, kept);
        {
            let mut s = inode.state.lock();
            began = self.changes.next();
            s.changed.begin(began);
            let md = s.md.take();
            kept = md.is_some();
            if let Some(md) = md {
                s.were = Some((md, true));
            }
            if let Some(name) = made {
                self.may_be_there(&mut s, name);
            }
        }
        Changing {
            dir,
            by,
            began,
            under,
            kept,
            inodes: self.clone(),
            inode,
        }
    }
}

impl Changing {
    /// The changed directory.
    pub(crate) fn dir(&self) -> Fid {
        self.dir
    }

    /// Whether the lock with this cookie covered the directory's attributes when the change began.
    pub(crate) fn is_under(&self, cookie: u64) -> bool {
        self.under == Some(cookie)
    }

    /// Ends the change. Returns true if the kernel may hold, or may still store, older attributes
    /// and must be invalidated.
    #[must_use]
    pub(crate) fn ended(self) -> bool {
        self.end(|_, _| Came::ToSomething)
    }

    /// Ends the change with the directory's new attributes from the reply. They are cached if no
    /// other change was in progress. The caller holds a lock on them. Returns true if the kernel
    /// must be invalidated.
    #[must_use]
    pub(crate) fn ended_with(self, attr: Attr) -> bool {
        self.end(|this, s| {
            // The reply has no ACL: the old one is right if a lock covered it without interruption.
            if s.changed.only(this.began)
                && let Some((were, _)) = s.were.take_if(|(_, covered)| *covered)
            {
                s.md = Some(MdAttr { attr, ..were });
            }
            Came::ToSomething
        })
    }

    /// Ends a change without effect: the state from before is cached again if no other change was
    /// in progress. `locked`: the lock under which the change began is still held.
    pub(crate) fn came_to_nothing(self, locked: bool) {
        let _ = self.end(|this, s| {
            if locked && this.kept && s.changed.only(this.began) {
                s.md = s.were.take_if(|(_, covered)| *covered).map(|(were, _)| were);
            }
            Came::ToNothing
        });
    }

    fn end(self, learn: impl FnOnce(&Changing, &mut InodeState) -> Came) -> bool {
        let (empty, tell) = {
            let mut s = self.inode.state.lock();
            let tell = match learn(&self, &mut s) {
                Came::ToSomething => {
                    self.inodes.drop_chunks(&mut s);
                    std::mem::take(&mut s.shown).to_others_than(self.by)
                }
                Came::ToNothing => false,
            };
            s.changed.end(self.inodes.changes.next());
            (s.is_empty(), tell)
        };
        if empty {
            self.inodes.prune(self.dir, self.inode);
        }
        tell
    }
}

/// The effect of a change.
enum Came {
    ToSomething,
    ToNothing,
}

#[cfg(test)]
mod tests {
    use super::{Changed, Changes, Shown};

    #[test]
    fn replies_to_requests_sent_before_or_during_a_change_are_not_cached() {
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

    #[test]
    fn the_kernel_is_invalidated_unless_only_the_changing_task_saw_the_attributes() {
        let mut shown = Shown::default();
        assert!(!shown.to_others_than(1), "no task has the attributes");
        shown.to(1);
        shown.to(1);
        assert!(!shown.to_others_than(1) && shown.to_others_than(2));
        shown.to(2);
        assert!(shown.to_others_than(1) && shown.to_others_than(2));
        let mut unknown = Shown::default();
        unknown.to(0);
        assert!(unknown.to_others_than(0), "task 0 counts as any");
    }
}

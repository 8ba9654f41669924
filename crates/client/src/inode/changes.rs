//! This client's own changes of names in a directory. On Nacre's lock terms
//! ([`wire::LockTerms::Nacre`]) the client keeps its lock on the directory during a change.
//!
//! A reply to a request sent during a change may or may not include the change. So attributes and
//! entries of the directory are cached only if no change was in progress from the request until the
//! reply. Attributes and entries from before a change are not used during the change, and are
//! dropped at its end unless it had no effect.

use super::{Inode, InodeState, Inodes};
use crate::attr::{Attr, MdAttr};
use ldlm::LockHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fid;

/// A point in the sequence of a mount's changes; each change begins and ends at its own stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChangeStamp(pub(super) u64);

/// The sequence of a mount's changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeClock(AtomicU64);

impl ChangeClock {
    /// The current stamp.
    pub(crate) fn now(&self) -> ChangeStamp {
        ChangeStamp(self.0.load(Ordering::Acquire))
    }

    /// Returns a new stamp, later than all before.
    pub(crate) fn next(&self) -> ChangeStamp {
        ChangeStamp(self.0.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

/// The changes of one directory.
#[derive(Debug, Default)]
pub(crate) struct DirChangeState {
    /// Number of changes in progress.
    in_progress: usize,
    /// The stamp of the last start or end of a change.
    last: ChangeStamp,
}

impl DirChangeState {
    /// The state of a directory that becomes cached. If this client changed the directory before,
    /// the change was at `last` or earlier.
    pub(crate) fn since(last: ChangeStamp) -> DirChangeState {
        DirChangeState { in_progress: 0, last }
    }

    /// The stamp of the last start or end of a change.
    pub(crate) fn last(&self) -> ChangeStamp {
        self.last
    }

    /// Whether a change is in progress.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.in_progress > 0
    }

    /// Whether the change that began at `began` is in progress and no other was since then.
    pub(crate) fn is_only_change(&self, began: ChangeStamp) -> bool {
        self.in_progress == 1 && self.last == began
    }

    /// Whether this client has not changed the directory since a request sent at that stamp.
    pub(crate) fn unchanged_since(&self, sent_at: ChangeStamp) -> bool {
        self.in_progress == 0 && self.last <= sent_at
    }

    /// Records the start of a change.
    pub(crate) fn begin(&mut self, now: ChangeStamp) {
        self.in_progress += 1;
        self.last = now;
    }

    /// Records the end of a change.
    pub(crate) fn end(&mut self, now: ChangeStamp) {
        self.in_progress -= 1;
        self.last = now;
    }
}

/// The tasks to which the kernel returned a directory's attributes. The kernel caches the
/// attributes with each such answer, perhaps late: after another task's change, for which it has
/// already updated its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KernelViewers {
    #[default]
    Nobody,
    /// Only this task.
    One(u32),
    /// Several tasks, or an unknown one.
    Several,
}

impl KernelViewers {
    /// Adds a task. Task 0, an unknown one, counts as several.
    pub(crate) fn add(&mut self, task: u32) {
        *self = match *self {
            KernelViewers::Nobody if task != 0 => KernelViewers::One(task),
            KernelViewers::One(same) if same == task => KernelViewers::One(task),
            _ => KernelViewers::Several,
        };
    }

    /// Whether another task than `task` may have received the attributes. `task` does not matter:
    /// it sends a request only after the kernel has stored the answer to its last request.
    fn includes_other_than(self, task: u32) -> bool {
        match self {
            KernelViewers::Nobody => false,
            KernelViewers::One(one) => one != task,
            KernelViewers::Several => true,
        }
    }
}

/// A change in progress. Until it ends, no attributes or entries of the directory are cached.
#[must_use]
pub(crate) struct DirChange {
    dir: Fid,
    /// The task that makes the change.
    changing_task: u32,
    began: ChangeStamp,
    /// The cookie of the lock that covered the directory's attributes when the change began.
    lock_cookie: Option<LockHandle>,
    /// Whether attributes were cached when the change began.
    had_attr: bool,
    inodes: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Inodes {
    /// Begins a change of names in a directory by a task. The name `new_name` may exist from now
    /// on. `lock_cookie`: of the held lock on the directory's attributes, if any.
    pub(crate) fn begin_change(
        self: &Arc<Inodes>,
        (dir, changing_task): (Fid, u32),
        new_name: Option<&[u8]>,
        lock_cookie: Option<LockHandle>,
    ) -> DirChange {
        let inode = self.entry(dir);
        let (began, had_attr);
        {
            let mut s = inode.state.lock();
            began = self.changes.next();
            s.changed.begin(began);
            let md = s.md.take();
            had_attr = md.is_some();
            if let Some(md) = md {
                s.last_known = Some((md, true));
            }
            if let Some(name) = new_name {
                self.note_created(&mut s, name);
            }
        }
        DirChange {
            dir,
            changing_task,
            began,
            lock_cookie,
            had_attr,
            inodes: self.clone(),
            inode,
        }
    }
}

impl DirChange {
    /// The changed directory.
    pub(crate) fn dir(&self) -> Fid {
        self.dir
    }

    /// Whether the lock with this cookie covered the directory's attributes when the change began.
    pub(crate) fn is_under_lock(&self, cookie: LockHandle) -> bool {
        self.lock_cookie == Some(cookie)
    }

    /// Ends the change. Returns whether the directory's attributes must be invalidated in the
    /// kernel, which may hold older ones, or still store them.
    #[must_use]
    pub(crate) fn finish(self) -> bool {
        self.end(|_, _| ChangeOutcome::Changed)
    }

    /// Ends the change with the directory's new attributes from the reply. They are cached if no
    /// other change was in progress and a lock covered the permissions meanwhile. The caller holds
    /// a lock on the attributes. Returns the same as [`DirChange::finish`].
    #[must_use]
    pub(crate) fn finish_with_attr(self, attr: Attr) -> bool {
        self.end(|this, s| {
            // The reply has no ACL: the old one is right if a lock covered it without interruption.
            if s.changed.is_only_change(this.began)
                && let Some((last_known, _)) = s.last_known.take_if(|(_, covered)| *covered)
            {
                s.md = Some(MdAttr { attr, ..last_known });
            }
            ChangeOutcome::Changed
        })
    }

    /// Ends a change without effect: the attributes from before are cached again if no other change
    /// was in progress. `locked`: the lock under which the change began is still held.
    pub(crate) fn finish_unchanged(self, locked: bool) {
        let _ = self.end(|this, s| {
            if locked && this.had_attr && s.changed.is_only_change(this.began) {
                s.md = s
                    .last_known
                    .take_if(|(_, covered)| *covered)
                    .map(|(last_known, _)| last_known);
            }
            ChangeOutcome::Unchanged
        });
    }

    fn end(self, apply: impl FnOnce(&DirChange, &mut InodeState) -> ChangeOutcome) -> bool {
        let (empty, stale) = {
            let mut s = self.inode.state.lock();
            let stale = match apply(&self, &mut s) {
                ChangeOutcome::Changed => {
                    self.inodes.drop_chunks(&mut s);
                    std::mem::take(&mut s.kernel_viewers).includes_other_than(self.changing_task)
                }
                ChangeOutcome::Unchanged => false,
            };
            s.changed.end(self.inodes.changes.next());
            (s.is_empty(), stale)
        };
        if empty {
            self.inodes.prune(self.dir, self.inode);
        }
        stale
    }
}

/// The effect of a change.
enum ChangeOutcome {
    Changed,
    Unchanged,
}

#[cfg(test)]
mod tests {
    use super::{ChangeClock, DirChangeState, KernelViewers};

    #[test]
    fn replies_to_requests_sent_before_or_during_a_change_are_not_cached() {
        let (changes, mut dir) = (ChangeClock::default(), DirChangeState::default());
        let before = changes.now();
        assert!(dir.unchanged_since(before));
        dir.begin(changes.next());
        dir.begin(changes.next());
        let during = changes.now();
        dir.end(changes.next());
        assert!(
            !dir.unchanged_since(changes.now()),
            "the other change is in progress"
        );
        dir.end(changes.next());
        assert!(!dir.unchanged_since(before) && !dir.unchanged_since(during));
        assert!(dir.unchanged_since(changes.now()));
        assert!(!DirChangeState::since(changes.next()).unchanged_since(during));
    }

    #[test]
    fn a_change_invalidates_the_kernel_unless_only_the_changing_task_has_the_attributes() {
        let mut viewers = KernelViewers::default();
        assert!(!viewers.includes_other_than(1), "no task has the attributes");
        viewers.add(1);
        viewers.add(1);
        assert!(!viewers.includes_other_than(1) && viewers.includes_other_than(2));
        viewers.add(2);
        assert!(viewers.includes_other_than(1) && viewers.includes_other_than(2));
        let mut unknown = KernelViewers::default();
        unknown.add(0);
        assert!(unknown.includes_other_than(0), "task 0 counts as any");
    }
}

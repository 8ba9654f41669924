//! This client's own changes of names in a directory. On Nacre's lock terms
//! ([`wire::LockTerms::Nacre`]) the client keeps its lock on the directory during a change.
//!
//! A reply to a request sent during a change may or may not include the change. So the client
//! caches attributes and entries of the directory from a reply only if no change was in progress
//! from the request until the reply. During a change, the client does not use the attributes and
//! entries cached before it. At the end of the change, the client drops them, unless the change had
//! no effect.

use super::{Inode, InodeState, Inodes};
use crate::attr::{Attr, MdAttr};
use ldlm::LockCookie;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fid;

/// A point in the sequence of a mount's changes. The begin and the end of each change get a stamp.
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
    /// The state of a directory that becomes cached. This client's last change of the directory, if
    /// any, was at `last` or earlier.
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

    /// Whether the change that began at `began` is in progress, and no other change has begun or
    /// ended since then.
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

/// The tasks that have received a directory's attributes since the last change. After a change by
/// one task, the kernel drops its copy of the attributes. But afterwards the kernel may store
/// attributes from an older answer to another task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AttrReaders {
    #[default]
    NoTask,
    /// Only this task.
    OneTask(u32),
    /// Several tasks, or an unknown one.
    SeveralTasks,
}

impl AttrReaders {
    /// Adds a task. Task 0 (unknown) counts as several tasks.
    pub(crate) fn add(&mut self, task: u32) {
        *self = match *self {
            AttrReaders::NoTask if task != 0 => AttrReaders::OneTask(task),
            AttrReaders::OneTask(same) if same == task => AttrReaders::OneTask(task),
            _ => AttrReaders::SeveralTasks,
        };
    }

    /// Whether a task other than `task` may have received the attributes. The answers to `task`
    /// itself are no problem: it sends a request only after the kernel has stored the answer to its
    /// last one.
    fn may_include_other_than(self, task: u32) -> bool {
        match self {
            AttrReaders::NoTask => false,
            AttrReaders::OneTask(one) => one != task,
            AttrReaders::SeveralTasks => true,
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
    lock_cookie: Option<LockCookie>,
    /// Whether attributes were cached when the change began.
    had_attr: bool,
    inodes: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Inodes {
    /// Begins a change of names in a directory by a task. The name `new_name` may exist from now
    /// on. `lock_cookie`: the cookie of the client's lock on the directory's attributes, if any.
    pub(crate) fn begin_change(
        self: &Arc<Inodes>,
        (dir, changing_task): (Fid, u32),
        new_name: Option<&[u8]>,
        lock_cookie: Option<LockCookie>,
    ) -> DirChange {
        let inode = self.entry(dir);
        let (began, had_attr);
        {
            let mut state = inode.state.lock();
            began = self.changes.next();
            state.changed.begin(began);
            let md = state.md.take();
            had_attr = md.is_some();
            if let Some(md) = md {
                state.last_known = Some((md, true));
            }
            if let Some(name) = new_name {
                self.note_created(&mut state, name);
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
    pub(crate) fn is_under_lock(&self, cookie: LockCookie) -> bool {
        self.lock_cookie == Some(cookie)
    }

    /// Ends the change. Returns whether the directory's attributes must be invalidated in the
    /// kernel, which may hold older attributes or store them later.
    #[must_use]
    pub(crate) fn finish(self) -> bool {
        self.end(|_, _| ChangeOutcome::Changed)
    }

    /// Ends the change with the directory's new attributes from the reply. Caches the attributes if
    /// no other change was in progress and a lock covered the permissions during the change. The
    /// caller holds a lock on the attributes. Returns the same as [`DirChange::finish`].
    #[must_use]
    pub(crate) fn finish_with_attr(self, attr: Attr) -> bool {
        self.end(|change, state| {
            // The reply has no ACL. The old ACL is right if a lock covered it without interruption.
            if state.changed.is_only_change(change.began)
                && let Some((last_known, _)) = state.last_known.take_if(|(_, covered)| *covered)
            {
                state.md = Some(MdAttr { attr, ..last_known });
            }
            ChangeOutcome::Changed
        })
    }

    /// Ends a change without effect: caches the attributes from before the change again if no other
    /// change was in progress. `still_locked`: the client still holds the lock under which the
    /// change began.
    pub(crate) fn finish_without_effect(self, still_locked: bool) {
        let _ = self.end(|change, state| {
            if still_locked && change.had_attr && state.changed.is_only_change(change.began) {
                state.md = state
                    .last_known
                    .take_if(|(_, covered)| *covered)
                    .map(|(last_known, _)| last_known);
            }
            ChangeOutcome::Unchanged
        });
    }

    fn end(self, apply: impl FnOnce(&DirChange, &mut InodeState) -> ChangeOutcome) -> bool {
        let (empty, stale) = {
            let mut state = self.inode.state.lock();
            let stale = match apply(&self, &mut state) {
                ChangeOutcome::Changed => {
                    self.inodes.drop_chunks(&mut state);
                    std::mem::take(&mut state.kernel_viewers).may_include_other_than(self.changing_task)
                }
                ChangeOutcome::Unchanged => false,
            };
            state.changed.end(self.inodes.changes.next());
            (state.is_empty(), stale)
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
    use super::{AttrReaders, ChangeClock, DirChangeState};

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
        let mut viewers = AttrReaders::default();
        assert!(!viewers.may_include_other_than(1), "no task has the attributes");
        viewers.add(1);
        viewers.add(1);
        assert!(!viewers.may_include_other_than(1) && viewers.may_include_other_than(2));
        viewers.add(2);
        assert!(viewers.may_include_other_than(1) && viewers.may_include_other_than(2));
        let mut unknown = AttrReaders::default();
        unknown.add(0);
        assert!(unknown.may_include_other_than(0), "task 0 counts as any");
    }
}

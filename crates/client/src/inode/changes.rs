//! Names that this client itself makes and removes, in a directory whose lock it may keep meanwhile
//! ([`wire::LockTerms::Nacre`]).
//!
//! What is asked for while a change is under way may have it or not. So attributes and entries of the directory are kept
//! only if no change was under way from before they were asked for until they are kept; what was kept before is not used
//! while one is, and dropped when it has ended, unless it has come to nothing.

use super::{Inode, InodeState, Inodes};
use crate::attr::{Attr, MdAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fid;

/// A point between the changes that a mount makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(super) u64);

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

/// To which tasks the kernel has answered, or is about to, with a directory's attributes, which it then keeps. It may take an
/// answer in late: after a change that another task makes meanwhile, of which it has told itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shown {
    #[default]
    ToNobody,
    To(u32),
    ToSeveral,
}

impl Shown {
    /// To this one too. A task that has no number here (0) may be any.
    pub(crate) fn to(&mut self, task: u32) {
        *self = match *self {
            Shown::ToNobody if task != 0 => Shown::To(task),
            Shown::To(same) if same == task => Shown::To(task),
            _ => Shown::ToSeveral,
        };
    }

    /// Whether another task than this one may have them. What a task asks for next is asked for after it has taken in what it
    /// was answered before.
    fn to_others_than(self, task: u32) -> bool {
        match self {
            Shown::ToNobody => false,
            Shown::To(one) => one != task,
            Shown::ToSeveral => true,
        }
    }
}

/// A change that is under way. Until it is said to have ended nothing that is learnt of the directory is kept.
#[must_use]
pub(crate) struct Changing {
    dir: Fid,
    /// The task that makes it.
    by: u32,
    began: Moment,
    /// The lock under which the directory's attributes were known when it began.
    under: Option<u64>,
    /// Whether they were kept until then.
    kept: bool,
    inodes: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl Inodes {
    /// A change of names in a directory begins, by this task; the directory's attributes are locked by the lock with this cookie,
    /// if they are; `made` may be there from now on.
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
    /// The directory that is changed.
    pub(crate) fn dir(&self) -> Fid {
        self.dir
    }

    /// Whether the directory's attributes were known under this lock when it began.
    pub(crate) fn is_under(&self, cookie: u64) -> bool {
        self.under == Some(cookie)
    }

    /// It has ended. Whether the kernel may have attributes from before, or take them in yet, and is to be told.
    #[must_use]
    pub(crate) fn ended(self) -> bool {
        self.end(|_, _| Came::ToSomething)
    }

    /// It was answered with the directory's attributes. They are kept where no other change was under way. Called with a lock
    /// on them held. Whether the kernel is to be told, as before.
    #[must_use]
    pub(crate) fn ended_with(self, attr: Attr) -> bool {
        self.end(|this, s| {
            // Who may do what is told apart: it is as it was if that was locked all the while.
            if s.changed.only(this.began)
                && let Some((were, _)) = s.were.take_if(|(_, covered)| *covered)
            {
                s.md = Some(MdAttr { attr, ..were });
            }
            Came::ToSomething
        })
    }

    /// It was answered that nothing was made: what was known of the directory is so still where no other change was under way.
    /// `locked`: the lock on its attributes is the one under which it began, and held.
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

/// What came of a change.
enum Came {
    ToSomething,
    ToNothing,
}

#[cfg(test)]
mod tests {
    use super::{Changed, Changes, Shown};

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

    #[test]
    fn the_kernel_is_told_of_a_change_unless_the_one_who_makes_it_has_looked_alone() {
        let mut shown = Shown::default();
        assert!(!shown.to_others_than(1), "nobody has looked");
        shown.to(1);
        shown.to(1);
        assert!(!shown.to_others_than(1) && shown.to_others_than(2));
        shown.to(2);
        assert!(shown.to_others_than(1) && shown.to_others_than(2));
        let mut unknown = Shown::default();
        unknown.to(0);
        assert!(unknown.to_others_than(0), "0 may be anybody");
    }
}

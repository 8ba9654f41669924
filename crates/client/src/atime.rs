//! Access times: which reads update them, by the mount's options.
//!
//! The kernel leaves access times to a FUSE file system and does not pass on its own `noatime` and
//! `relatime`. As in Lustre, readers on this client see the new time at once. The close reports the
//! time to the metadata target, so a read costs no extra request. The target stores the first
//! access time after a change. It stores a further access time only if this is at least
//! `mdd.*.atime_diff` seconds later than the stored time. For a directory, the request that reads
//! entries carries the time if an update is due.

use std::sync::atomic::{AtomicU8, Ordering};
use wire::{Time, Times};

/// With `relatime`, a read updates an access time that is at least this old, in seconds: a day.
const STALE_SECS: i64 = 24 * 3600;

/// Which reads update the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`: the first read after a change, and one a day.
    #[default]
    Relative,
    /// `strictatime`: each read.
    Strict,
    /// `noatime`: no read.
    Never,
}

/// The current access time rules of a mount, each stored as the number of an [`Atime`].
#[derive(Debug)]
pub(crate) struct AtimeRules {
    files: AtomicU8,
    directories: AtomicU8,
}

impl AtimeRules {
    /// `atime`: the rule for files. `directories`: the rule applies to directories too; otherwise
    /// the rule for directories is [`Atime::Never`].
    pub(crate) fn new(atime: Atime, directories: bool) -> AtimeRules {
        let rule = AtimeRules {
            files: AtomicU8::default(),
            directories: AtomicU8::default(),
        };
        rule.set(atime, directories);
        rule
    }

    pub(crate) fn set(&self, atime: Atime, directories: bool) {
        let directory_rule = if directories { atime } else { Atime::Never };
        self.files.store(atime as u8, Ordering::Relaxed);
        self.directories.store(directory_rule as u8, Ordering::Relaxed);
    }

    pub(crate) fn files(&self) -> Atime {
        Atime::from_number(self.files.load(Ordering::Relaxed))
    }

    pub(crate) fn directories(&self) -> Atime {
        Atime::from_number(self.directories.load(Ordering::Relaxed))
    }
}

impl Atime {
    fn from_number(number: u8) -> Atime {
        [Atime::Relative, Atime::Strict, Atime::Never]
            .into_iter()
            .find(|rule| *rule as u8 == number)
            .unwrap_or_default()
    }

    /// The rule that a mount option sets; `None`: it is not an access time option.
    pub fn from_option(option: &str) -> Option<Atime> {
        match option {
            "relatime" => Some(Atime::Relative),
            "strictatime" | "atime" => Some(Atime::Strict),
            "noatime" => Some(Atime::Never),
            _ => None,
        }
    }

    /// Whether a read at `read` updates the access time of a file with the times `known`.
    pub(crate) fn updates(self, known: Times, read: Time) -> bool {
        let is_later = read > known.atime;
        match self {
            Atime::Never => false,
            Atime::Strict => is_later,
            Atime::Relative => {
                let is_stale = known.atime.later(STALE_SECS) <= read;
                is_later && (known.atime <= known.mtime || known.atime <= known.ctime || is_stale)
            }
        }
    }
}

/// The access time of one file as this client's reads set it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtimeTracker {
    /// Time of the last read, until [`AtimeTracker::atime`] applies a rule to it.
    read: Option<Time>,
    /// An updated access time that the close has not reported to the metadata target yet.
    unreported: Option<Time>,
}

impl AtimeTracker {
    /// Records a read.
    pub(crate) fn record_read(&mut self, now: Time) {
        self.read = Some(now);
    }

    /// The access time that this client shows. Applies the rule to the last read. `known`: the
    /// times from the servers.
    pub(crate) fn atime(&mut self, rule: Atime, known: Times) -> Time {
        let atime = known.atime.max(self.unreported.unwrap_or(known.atime));
        match self.read.take() {
            Some(read) if rule.updates(Times { atime, ..known }, read) => {
                self.unreported = Some(read);
                read
            }
            _ => atime,
        }
    }

    /// Takes the access time to report to the metadata target; `None`: nothing to report. `known`:
    /// the times from the servers.
    pub(crate) fn take_unreported(&mut self, rule: Atime, known: Times) -> Option<Time> {
        self.atime(rule, known);
        self.unreported.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{Atime, AtimeTracker, STALE_SECS};
    use wire::{Time, Times};

    fn times(atime: i64, changed: i64) -> Times {
        Times {
            atime: Time::secs(atime),
            mtime: Time::secs(changed),
            ctime: Time::secs(changed),
        }
    }

    #[test]
    fn relatime_updates_at_the_first_read_after_a_change_and_once_a_day() {
        let updates = |known, read| Atime::Relative.updates(known, Time::secs(read));
        assert!(updates(times(10, 10), 11));
        assert!(updates(times(10, 20), 30));
        assert!(!updates(times(30, 20), 40));
        assert!(updates(times(30, 20), 30 + STALE_SECS));
        assert!(
            !updates(times(i64::MAX, 20), i64::MAX),
            "the largest time does not overflow"
        );
    }

    #[test]
    fn strictatime_updates_at_each_later_read_and_noatime_at_none() {
        assert!(Atime::Strict.updates(times(30, 20), Time::secs(31)));
        assert!(!Atime::Strict.updates(times(30, 20), Time::secs(30)));
        assert!(!Atime::Never.updates(times(10, 20), Time::secs(30)));
    }

    #[test]
    fn an_access_time_is_visible_at_once_and_reported_once() {
        let mut tracker = AtimeTracker::default();
        tracker.record_read(Time::secs(11));
        assert_eq!(tracker.atime(Atime::Relative, times(10, 10)), Time::secs(11));
        tracker.record_read(Time::secs(12));
        assert_eq!(tracker.atime(Atime::Relative, times(10, 10)), Time::secs(11));
        assert_eq!(
            tracker.take_unreported(Atime::Relative, times(10, 10)),
            Some(Time::secs(11))
        );
        assert_eq!(tracker.take_unreported(Atime::Relative, times(11, 10)), None);
    }
}

//! Access times: which reads count, by the mount's options.
//!
//! The kernel leaves this to a FUSE file system, and tells it nothing of its own `noatime` and `relatime`. As in Lustre, a
//! file's reader knows the time at once, and the metadata target learns it when the file is closed, if it is later than
//! the one that it has by `mdd.*.atime_diff` seconds, or the first since a change: so reading costs no request. A
//! directory's is told with the request that reads it.

use std::sync::atomic::{AtomicU8, Ordering};
use wire::{Time, Times};

/// With `relatime` an access time that is older than this is brought up to date: a day.
const STALE_SECS: i64 = 24 * 3600;

/// Which reads change the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`: the first after a change, and one a day.
    #[default]
    Relative,
    /// `strictatime`: each.
    Strict,
    /// `noatime`: none.
    Never,
}

/// The rule of a mount, which may change while it is mounted.
#[derive(Debug)]
pub(crate) struct AtimeRule {
    files: AtomicU8,
    directories: AtomicU8,
}

impl AtimeRule {
    /// The rule for files, and whether reads of directories count too.
    pub(crate) fn new(atime: Atime, directories: bool) -> AtimeRule {
        let rule = AtimeRule {
            files: AtomicU8::default(),
            directories: AtomicU8::default(),
        };
        rule.set(atime, directories);
        rule
    }

    pub(crate) fn set(&self, atime: Atime, directories: bool) {
        let of_directories = if directories { atime } else { Atime::Never };
        self.files.store(atime as u8, Ordering::Relaxed);
        self.directories.store(of_directories as u8, Ordering::Relaxed);
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

    /// By its name as a mount option.
    pub fn from_option(option: &str) -> Option<Atime> {
        match option {
            "relatime" => Some(Atime::Relative),
            "strictatime" | "atime" => Some(Atime::Strict),
            "noatime" => Some(Atime::Never),
            _ => None,
        }
    }

    /// Whether a read at this time counts for a file with these times.
    pub(crate) fn counts(self, known: Times, read: Time) -> bool {
        let later = read > known.atime;
        match self {
            Atime::Never => false,
            Atime::Strict => later,
            Atime::Relative => {
                let stale = known.atime.later(STALE_SECS) <= read;
                later && (known.atime <= known.mtime || known.atime <= known.ctime || stale)
            }
        }
    }
}

/// When a file was read here, for as long as it is in use here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    /// The last read, of which it is not known yet whether it counts.
    read: Option<Time>,
    /// The last one that counts, and that the metadata target has not been told of.
    counts: Option<Time>,
}

impl Access {
    /// It was read.
    pub(crate) fn read(&mut self, now: Time) {
        self.read = Some(now);
    }

    /// The access time of a file with these times.
    pub(crate) fn atime(&mut self, rule: Atime, known: Times) -> Time {
        let atime = known.atime.max(self.counts.unwrap_or(known.atime));
        match self.read.take() {
            Some(read) if rule.counts(Times { atime, ..known }, read) => {
                self.counts = Some(read);
                read
            }
            _ => atime,
        }
    }

    /// The access time to tell, if there is a new one. Once.
    pub(crate) fn take(&mut self, rule: Atime, known: Times) -> Option<Time> {
        self.atime(rule, known);
        self.counts.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Atime, STALE_SECS};
    use wire::{Time, Times};

    fn times(atime: i64, changed: i64) -> Times {
        Times {
            atime: Time::secs(atime),
            mtime: Time::secs(changed),
            ctime: Time::secs(changed),
        }
    }

    #[test]
    fn the_first_read_after_a_change_counts_and_one_a_day() {
        let counts = |known, read| Atime::Relative.counts(known, Time::secs(read));
        assert!(counts(times(10, 10), 11));
        assert!(counts(times(10, 20), 30));
        assert!(!counts(times(30, 20), 40));
        assert!(counts(times(30, 20), 30 + STALE_SECS));
        assert!(
            !counts(times(i64::MAX, 20), i64::MAX),
            "the end of time is no overflow"
        );
    }

    #[test]
    fn other_rules_are_simple() {
        assert!(Atime::Strict.counts(times(30, 20), Time::secs(31)));
        assert!(!Atime::Strict.counts(times(30, 20), Time::secs(30)));
        assert!(!Atime::Never.counts(times(10, 20), Time::secs(30)));
    }

    #[test]
    fn what_counts_is_shown_from_then_on_and_told_once() {
        let mut access = Access::default();
        access.read(Time::secs(11));
        assert_eq!(access.atime(Atime::Relative, times(10, 10)), Time::secs(11));
        access.read(Time::secs(12));
        assert_eq!(access.atime(Atime::Relative, times(10, 10)), Time::secs(11));
        assert_eq!(access.take(Atime::Relative, times(10, 10)), Some(Time::secs(11)));
        assert_eq!(access.take(Atime::Relative, times(11, 10)), None);
    }
}

//! File times, with nanoseconds as an extension of the protocol.
//!
//! Lustre's attributes have whole seconds; only `ost_lvb` has fields for nanoseconds, which Lustre
//! leaves zero. Two Nacre peers agree at connect to use words that Lustre leaves unused: the client
//! sets [`NANOSECONDS_REQUESTED`] in `paddingF` of its `obd_connect_data`, and the server replies
//! with [`NANOSECONDS_GRANTED`]. Any other value means that the server has not agreed: for example
//! 0, or the echoed request. Nacre applies [`Precision::of`] to each time that it sends or
//! receives. Thus, without an agreement, it sends whole seconds and zeros in these words, and
//! ignores the words that it receives. See `docs/decisions/002-nanosecond-times.md`.
//!
//! The table lists the fields that hold the nanoseconds of each time. If mtime and ctime share a
//! field, mtime uses its low half and ctime its high half. In a reply, `mbo_suppgid` holds the
//! nanoseconds of btime.
//!
//! | structure | atime | mtime | ctime | other times |
//! |---|---|---|---|---|
//! | `mdt_body` of a reply | `mbo_unused3` | `mbo_padding_10` | `mbo_padding_10` | |
//! | `mdt_body` of `MDS_READPAGE` | `mbo_unused3` | | | |
//! | `mdt_body` of `MDS_RMFID` | | | `mbo_padding_10` | |
//! | `mdt_rec_setattr` | `sa_padding_2` | `sa_padding_4` | `sa_padding_5` | |
//! | records of create, link, unlink, rename, setxattr | | | | time of the change: the last word |
//! | `obdo` | `o_padding_4` | `o_padding_5` | `o_padding_5` | |
//! | `ost_lvb` | `lvb_atime_ns` | `lvb_mtime_ns` | `lvb_ctime_ns` | |

use crate::{
    MdtBody, MdtRecCreate, MdtRecLink, MdtRecRename, MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink,
    ObdConnectData, Obdo, OstLvb,
};
use std::cmp::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `paddingF` of a client that requests nanoseconds.
pub const NANOSECONDS_REQUESTED: u64 = 0x4e61_6372_654e_733f;
/// `paddingF` of a server that grants them.
pub const NANOSECONDS_GRANTED: u64 = 0x4e61_6372_654e_7321;

/// Nanoseconds per second.
const NS_PER_SECOND: u32 = 1_000_000_000;

/// A point in time: seconds since 1970 (negative before), and nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds, less than one second.
    pub ns: u32,
}

impl Time {
    /// A time from a peer or a disk. Out-of-range nanoseconds become 0.
    pub const fn new(sec: i64, ns: u32) -> Time {
        let ns = if ns < NS_PER_SECOND { ns } else { 0 };
        Time { sec, ns }
    }

    /// A time in whole seconds.
    pub const fn secs(sec: i64) -> Time {
        Time { sec, ns: 0 }
    }

    /// Whether the time is unset: 0 s and 0 ns, also on disk and on the wire.
    pub const fn is_none(self) -> bool {
        self.sec == 0 && self.ns == 0
    }

    /// The later of two times. If only one is set, that one.
    pub fn or_later(self, other: Time) -> Time {
        match (self.is_none(), other.is_none()) {
            (true, _) => other,
            (_, true) => self,
            _ => self.max(other),
        }
    }

    /// `known` if this time has no nanoseconds and both are in the same second; otherwise this
    /// time.
    pub const fn refined(self, known: Time) -> Time {
        if self.ns == 0 && self.sec == known.sec {
            known
        } else {
            self
        }
    }

    /// The time `secs` seconds later, or earlier if negative, saturating.
    pub const fn later(self, secs: i64) -> Time {
        Time {
            sec: self.sec.saturating_add(secs),
            ns: self.ns,
        }
    }
}

impl From<SystemTime> for Time {
    fn from(t: SystemTime) -> Time {
        match t.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                ns: since.subsec_nanos(),
            },
            Err(e) => {
                let until = e.duration();
                let sec = 0i64.saturating_sub_unsigned(until.as_secs());
                match until.subsec_nanos() {
                    0 => Time::secs(sec),
                    ns => Time::new(sec.saturating_sub(1), NS_PER_SECOND - ns),
                }
            }
        }
    }
}

impl From<Time> for SystemTime {
    /// The result is 1970 if the system cannot represent the second, and a whole second if it
    /// cannot represent the nanoseconds.
    fn from(t: Time) -> SystemTime {
        let secs = Duration::from_secs(t.sec.unsigned_abs());
        let second = if t.sec < 0 {
            UNIX_EPOCH.checked_sub(secs)
        } else {
            UNIX_EPOCH.checked_add(secs)
        };
        let second = second.unwrap_or(UNIX_EPOCH);
        second
            .checked_add(Duration::from_nanos(t.ns.into()))
            .unwrap_or(second)
    }
}

/// The precision of the times that two peers exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Whole seconds, as in Lustre.
    Seconds,
    /// Nanoseconds, in words that Lustre leaves unused.
    Nanoseconds,
}

impl Precision {
    /// The value of `paddingF` in the reply of a server that supports nanoseconds.
    pub fn grant(request: &ObdConnectData) -> u64 {
        match request.paddingF {
            NANOSECONDS_REQUESTED => NANOSECONDS_GRANTED,
            _ => 0,
        }
    }

    /// The agreed precision according to the server's reply.
    pub fn agreed(reply: &ObdConnectData) -> Precision {
        match reply.paddingF {
            NANOSECONDS_GRANTED => Precision::Nanoseconds,
            _ => Precision::Seconds,
        }
    }

    /// A time reduced to this precision.
    pub fn of(self, t: Time) -> Time {
        match self {
            Precision::Seconds => Time::secs(t.sec),
            Precision::Nanoseconds => t,
        }
    }
}

/// The times of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Times {
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

impl Times {
    /// The times reduced to this precision.
    pub fn at(self, precision: Precision) -> Times {
        Times {
            atime: precision.of(self.atime),
            mtime: precision.of(self.mtime),
            ctime: precision.of(self.ctime),
        }
    }

    /// The times of a file after a change of its data with the times `change`. A change with an
    /// earlier ctime than the file's arrived late: a later change has set mtime, so the times stay.
    pub fn after_change(self, change: Times) -> Times {
        let ctime = change.ctime.refined(self.ctime);
        if ctime < self.ctime {
            return self;
        }
        let mtime = change.mtime.refined(self.mtime);
        Times { mtime, ctime, ..self }
    }

    /// The times of a file after a write under a lock with the times `write`. The lock makes the
    /// write the last change. If the write's ctime is nevertheless earlier than the file's (the
    /// writer's clock is slow, or the data was delayed), ctime stays and mtime is the later of
    /// both.
    pub fn after_write(self, write: Times) -> Times {
        if write.ctime.refined(self.ctime) < self.ctime {
            let mtime = self.mtime.or_later(write.mtime);
            return Times { mtime, ..self };
        }
        self.after_change(write)
    }

    /// The times of a file whose inode has these times, and whose data has the times `data`. If the
    /// data's ctime is not older than the inode's, the data's mtime wins, even if it is earlier:
    /// `utimes` sets the data's times too. Otherwise the later mtime wins, because another client
    /// can call `utimes` while a client writes under its own lock. The data's mtime is 0 until a
    /// write or `utimes` sets it; until then the inode's mtime wins.
    pub fn with_data(self, data: Times) -> Times {
        let data_is_newer = data.ctime.refined(self.ctime) >= self.ctime && !data.mtime.is_none();
        Times {
            atime: self.atime.or_later(data.atime),
            mtime: match data_is_newer {
                true => data.mtime,
                false => self.mtime.or_later(data.mtime),
            },
            ctime: self.ctime.max(data.ctime),
        }
    }

    /// Merges the times known to two nodes: the later atime, the later ctime, and the mtime of the
    /// node with the later ctime. With equal ctimes, or if that mtime is unset, the later mtime.
    pub fn latest(self, other: Times) -> Times {
        let (own, others) = (self.ctime.refined(other.ctime), other.ctime.refined(self.ctime));
        let mtime = match own.cmp(&others) {
            Ordering::Less if !other.mtime.is_none() => other.mtime,
            Ordering::Greater if !self.mtime.is_none() => self.mtime,
            _ => self.mtime.or_later(other.mtime),
        };
        Times {
            atime: self.atime.or_later(other.atime),
            mtime,
            ctime: self.ctime.max(other.ctime),
        }
    }
}

/// A structure with the times of a file.
pub trait HasTimes {
    /// The times. Other fields define which of them are valid.
    fn times(&self) -> Times;
    /// Sets all times.
    fn set_times(&mut self, times: Times);
}

/// Implements [`HasTimes`] for a type with the fields `atime`, `mtime` and `ctime`.
#[macro_export]
macro_rules! impl_has_times {
    ($t:ty) => {
        impl $crate::HasTimes for $t {
            fn times(&self) -> $crate::Times {
                $crate::Times {
                    atime: self.atime,
                    mtime: self.mtime,
                    ctime: self.ctime,
                }
            }

            fn set_times(&mut self, t: $crate::Times) {
                (self.atime, self.mtime, self.ctime) = (t.atime, t.mtime, t.ctime);
            }
        }
    };
}

/// Implements [`HasTimes`] for structures with one field for each number of nanoseconds.
macro_rules! has_times {
    ($($t:ty { $atime:ident $atime_ns:ident, $mtime:ident $mtime_ns:ident, $ctime:ident $ctime_ns:ident })*) => {$(
        impl HasTimes for $t {
            fn times(&self) -> Times {
                Times {
                    atime: Time::new(self.$atime, self.$atime_ns),
                    mtime: Time::new(self.$mtime, self.$mtime_ns),
                    ctime: Time::new(self.$ctime, self.$ctime_ns),
                }
            }
            fn set_times(&mut self, times: Times) {
                (self.$atime, self.$atime_ns) = (times.atime.sec, times.atime.ns);
                (self.$mtime, self.$mtime_ns) = (times.mtime.sec, times.mtime.ns);
                (self.$ctime, self.$ctime_ns) = (times.ctime.sec, times.ctime.ns);
            }
        }
    )*};
}

/// Implements [`HasTimes`] for structures with the nanoseconds of mtime and ctime in one field.
macro_rules! has_times_in_one_word {
    ($($t:ty { $atime:ident, $mtime:ident, $ctime:ident, $atime_ns:ident, $both_ns:ident })*) => {$(
        impl HasTimes for $t {
            fn times(&self) -> Times {
                Times {
                    atime: Time::new(self.$atime, self.$atime_ns),
                    mtime: Time::new(self.$mtime, self.$both_ns as u32),
                    ctime: Time::new(self.$ctime, (self.$both_ns >> 32) as u32),
                }
            }
            fn set_times(&mut self, times: Times) {
                (self.$atime, self.$mtime, self.$ctime) = (times.atime.sec, times.mtime.sec, times.ctime.sec);
                self.$atime_ns = times.atime.ns;
                self.$both_ns = u64::from(times.ctime.ns) << 32 | u64::from(times.mtime.ns);
            }
        }
    )*};
}

has_times! {
    MdtRecSetattr { sa_atime sa_padding_2, sa_mtime sa_padding_4, sa_ctime sa_padding_5 }
    OstLvb { lvb_atime lvb_atime_ns, lvb_mtime lvb_mtime_ns, lvb_ctime lvb_ctime_ns }
}
has_times_in_one_word! {
    MdtBody { mbo_atime, mbo_mtime, mbo_ctime, mbo_unused3, mbo_padding_10 }
    Obdo { o_atime, o_mtime, o_ctime, o_padding_4, o_padding_5 }
}

impl MdtBody {
    /// The creation time in a reply.
    pub fn btime(&self) -> Time {
        Time::new(self.mbo_btime as i64, self.mbo_suppgid)
    }

    /// Sets the creation time in a reply.
    pub fn set_btime(&mut self, t: Time) {
        (self.mbo_btime, self.mbo_suppgid) = (t.sec as u64, t.ns);
    }
}

/// The record of a change with one time.
pub trait HasTime: Sized {
    /// The time of the change.
    fn time(&self) -> Time;
    /// The same record with this time.
    fn with_time(self, t: Time) -> Self;
}

macro_rules! has_time {
    ($($t:ty { $time:ident $ns:ident })*) => {$(
        impl HasTime for $t {
            fn time(&self) -> Time {
                Time::new(self.$time, self.$ns)
            }
            fn with_time(mut self, t: Time) -> Self {
                (self.$time, self.$ns) = (t.sec, t.ns);
                self
            }
        }
    )*};
}
has_time! {
    MdtRecCreate { cr_time cr_padding_4 }
    MdtRecLink { lk_time lk_padding_9 }
    MdtRecUnlink { ul_time ul_padding_9 }
    MdtRecRename { rn_time rn_padding_8 }
    MdtRecSetxattr { sx_time sx_padding_11 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::WireStruct;

    fn request() -> ObdConnectData {
        ObdConnectData {
            paddingF: NANOSECONDS_REQUESTED,
            ..ObdConnectData::default()
        }
    }

    #[test]
    fn nanoseconds_are_agreed_only_if_both_peers_support_them() {
        let reply = |request: &ObdConnectData| ObdConnectData {
            paddingF: Precision::grant(request),
            ..ObdConnectData::default()
        };
        assert_eq!(Precision::agreed(&reply(&request())), Precision::Nanoseconds);
        let silent = ObdConnectData::default();
        assert_eq!(
            reply(&silent),
            silent,
            "a client without a request gets Lustre's reply"
        );
        // A server that echoes, a server that clears, and a client that echoes the server's reply.
        assert_eq!(Precision::agreed(&request()), Precision::Seconds);
        assert_eq!(Precision::agreed(&silent), Precision::Seconds);
        assert_eq!(Precision::grant(&reply(&request())), 0);
    }

    #[test]
    fn nanoseconds_are_requested_in_the_last_word_of_the_connect_data() {
        let bytes = request().to_bytes();
        assert_eq!(bytes[184..], NANOSECONDS_REQUESTED.to_le_bytes());
        assert_eq!(bytes[..184], [0; 184]);
    }

    /// Offsets of the nonzero 32-bit words of a structure.
    fn nonzero_words(bytes: &[u8]) -> Vec<usize> {
        let word = |(i, w): (usize, &[u8])| w.iter().any(|&b| b != 0).then_some(4 * i);
        bytes.chunks(4).enumerate().filter_map(word).collect()
    }

    const DISTINCT_NANOSECONDS: Times = Times {
        atime: Time::new(0, 1),
        mtime: Time::new(0, 2),
        ctime: Time::new(0, 3),
    };

    fn with_times<T: HasTimes + Default>(times: Times) -> T {
        let mut t = T::default();
        t.set_times(times);
        t
    }

    #[test]
    fn nanoseconds_use_words_that_lustre_leaves_unused() {
        let mut body: MdtBody = with_times(DISTINCT_NANOSECONDS);
        body.set_btime(Time::new(0, 4));
        assert_eq!(nonzero_words(&body.to_bytes()), [144, 160, 208, 212]);
        assert_eq!(
            nonzero_words(&with_times::<MdtRecSetattr>(DISTINCT_NANOSECONDS).to_bytes()),
            [36, 128, 132]
        );
        assert_eq!(
            nonzero_words(&with_times::<Obdo>(DISTINCT_NANOSECONDS).to_bytes()),
            [188, 192, 196]
        );
        assert_eq!(
            nonzero_words(&with_times::<OstLvb>(DISTINCT_NANOSECONDS).to_bytes()),
            [40, 44, 48]
        );
        let ns = Time::new(0, 5);
        for bytes in [
            MdtRecCreate::default().with_time(ns).to_bytes(),
            MdtRecLink::default().with_time(ns).to_bytes(),
            MdtRecUnlink::default().with_time(ns).to_bytes(),
            MdtRecRename::default().with_time(ns).to_bytes(),
            MdtRecSetxattr::default().with_time(ns).to_bytes(),
        ] {
            assert_eq!(nonzero_words(&bytes), [132]);
        }
    }

    #[test]
    fn whole_seconds_leave_every_unused_word_zero() {
        let fine = Times {
            atime: Time::new(1, 10),
            mtime: Time::new(2, 20),
            ctime: Time::new(3, 30),
        };
        let times = fine.at(Precision::Seconds);
        let body: MdtBody = with_times(times);
        assert_eq!((body.mbo_unused3, body.mbo_padding_10), (0, 0));
        assert_eq!((body.mbo_atime, body.mbo_mtime, body.mbo_ctime), (1, 2, 3));
        let oa: Obdo = with_times(times);
        assert_eq!((oa.o_padding_4, oa.o_padding_5, oa.o_padding_6), (0, 0, 0));
        assert_eq!(with_times::<MdtBody>(fine).times(), fine);
        assert_eq!(with_times::<Obdo>(fine).times(), fine);
        assert_eq!(with_times::<OstLvb>(fine).times(), fine);
        assert_eq!(with_times::<MdtRecSetattr>(fine).times(), fine);
    }

    #[test]
    fn a_late_change_does_not_set_times_back() {
        let times = |mtime, ctime| Times {
            mtime,
            ctime,
            ..Times::default()
        };
        let (early, late) = (Time::new(5, 10), Time::new(5, 20));
        let known = times(late, late);
        assert_eq!(known.after_change(times(early, early)), known);
        let set = times(Time::secs(1), late);
        assert_eq!(
            known.after_change(set),
            set,
            "a set mtime comes with the latest ctime"
        );
        assert_eq!(set.after_change(times(early, early)), set);
        // A change in whole seconds has no order within its second, so it counts as the later one.
        let whole = times(Time::secs(5), Time::secs(5));
        assert_eq!(known.after_change(whole), known);
        assert_eq!(set.after_change(whole), times(Time::secs(5), late));
        assert_eq!(
            known.after_change(times(Time::secs(6), Time::secs(6))).mtime,
            Time::secs(6)
        );
    }

    #[test]
    fn a_write_changes_mtime_even_with_a_slow_clock() {
        let times = |mtime, ctime| Times {
            mtime: Time::secs(mtime),
            ctime: Time::secs(ctime),
            ..Times::default()
        };
        let set_to_the_past = times(1, 20);
        assert_eq!(set_to_the_past.after_write(times(19, 19)), times(19, 20));
        assert_eq!(set_to_the_past.after_write(times(20, 20)), times(20, 20));
        assert_eq!(set_to_the_past.after_write(times(21, 21)), times(21, 21));
        assert_eq!(times(20, 20).after_write(times(19, 19)), times(20, 20));
        assert_eq!(
            times(20, 20).after_write(times(1, 20)),
            times(1, 20),
            "the writer has set mtime"
        );
    }

    #[test]
    fn mtime_comes_from_the_node_with_the_later_ctime() {
        let times = |mtime, ctime| Times {
            mtime: Time::secs(mtime),
            ctime: Time::secs(ctime),
            ..Times::default()
        };
        let (future, now) = (times(4_000_000_000, 10), times(11, 11));
        assert_eq!(future.latest(now), now);
        assert_eq!(now.latest(future), now);
        assert_eq!(times(1, 10).latest(times(10, 10)), times(10, 10));
        assert_eq!(times(0, 11).latest(times(5, 5)), times(5, 11));
    }

    #[test]
    fn out_of_range_nanoseconds_become_zero() {
        let lvb = OstLvb {
            lvb_mtime: 7,
            lvb_mtime_ns: u32::MAX,
            ..OstLvb::default()
        };
        assert_eq!(lvb.times().mtime, Time::secs(7));
        assert_eq!(Time::new(1, 999_999_999).ns, 999_999_999);
        assert_eq!(Time::new(1, 1_000_000_000).ns, 0);
    }

    #[test]
    fn times_before_1970_count_nanoseconds_forward() {
        let half = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(Time::from(half), Time::new(-1, 500_000_000));
        for t in [
            Time::new(-1, 1),
            Time::new(-2, 0),
            Time::new(0, 999_999_999),
            Time::new(1 << 40, 7),
            Time::new(i64::MAX, 999_999_999),
            Time::secs(i64::MIN),
        ] {
            assert_eq!(Time::from(SystemTime::from(t)), t);
        }
        assert!(Time::new(-1, 999_999_999) < Time::default());
        assert_eq!(Time::new(i64::MAX - 1, 5).later(60), Time::new(i64::MAX, 5));
    }
}

//! The clients that changed each object since the last commit.
//!
//! After a restart a client replays its uncommitted changes, also over the data that another client
//! wrote later. If the other client replays its own changes, they follow; but it may have gone, and
//! rely on the sync of its data. So a sync of an object that several clients have changed since the
//! last commit commits everything: then nothing is replayed. A sync of any other object writes only
//! the object.
//!
//! A change counts until a commit that began after it has ended.

use std::collections::hash_map::Entry;

use cpt::HashMap;
use parking_lot::Mutex;
use wire::Fid;

const SHARDS: usize = 16;

/// The writers of the objects that changed since the last commit.
#[derive(Default)]
pub(crate) struct Writers([Mutex<Shard>; SHARDS]);

#[derive(Default)]
struct Shard {
    /// Objects that changed since the last commit began.
    since_begin: HashMap<Fid, Writer>,
    /// Objects that changed before the last commit began, which has not ended.
    before_begin: HashMap<Fid, Writer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// The handle of the client's export.
    One(u64),
    Several,
}

impl Writer {
    fn and(self, other: Writer) -> Writer {
        match self == other {
            true => self,
            false => Writer::Several,
        }
    }
}

fn add_to(writers: &mut HashMap<Fid, Writer>, fid: Fid, writer: Writer) {
    match writers.entry(fid) {
        Entry::Occupied(mut entry) => drop(entry.insert(entry.get().and(writer))),
        Entry::Vacant(entry) => drop(entry.insert(writer)),
    }
}

impl Writers {
    fn shard(&self, fid: &Fid) -> &Mutex<Shard> {
        &self.0[fid.f_oid as usize % SHARDS]
    }

    /// Records that a client has changed an object, when the transaction has ended. `client` is the
    /// handle of its export.
    pub(crate) fn add(&self, fid: Fid, client: u64) {
        add_to(&mut self.shard(&fid).lock().since_begin, fid, Writer::One(client));
    }

    /// Whether several clients have changed an object since the last commit.
    pub(crate) fn are_several(&self, fid: &Fid) -> bool {
        let shard = self.shard(fid).lock();
        let writers = [shard.since_begin.get(fid), shard.before_begin.get(fid)];
        let together = writers.into_iter().flatten().copied().reduce(Writer::and);
        together == Some(Writer::Several)
    }

    /// A commit of the changes so far begins.
    pub(crate) fn begin_commit(&self) {
        for shard in &self.0 {
            let mut shard = shard.lock();
            for (fid, writer) in std::mem::take(&mut shard.since_begin) {
                add_to(&mut shard.before_begin, fid, writer);
            }
        }
    }

    /// The commit that began last has succeeded.
    pub(crate) fn end_commit(&self) {
        for shard in &self.0 {
            shard.lock().before_begin = HashMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_count_until_a_commit_that_began_later_has_ended() {
        let writers = Writers::default();
        let (a, b) = (Fid::new(5, 1, 0), Fid::new(5, 2, 0));
        writers.add(a, 1);
        writers.add(b, 1);
        writers.add(a, 1);
        assert!(!writers.are_several(&a));
        writers.begin_commit();
        writers.add(a, 2);
        assert!(writers.are_several(&a) && !writers.are_several(&b));
        // The commit fails, and the next one succeeds.
        writers.begin_commit();
        assert!(writers.are_several(&a));
        writers.add(b, 1);
        writers.end_commit();
        assert!(!writers.are_several(&a) && !writers.are_several(&b));
        writers.add(b, 2);
        assert!(writers.are_several(&b));
    }
}

//! The ledger of an MDT: which update records it keeps, and which ones it may forget.
//!
//! Pure. The rules (docs/decisions/010-operations-on-several-mdts.md):
//!
//! - An MDT has an update record if it keeps the record. It also has it if its number is not above
//!   the mark up to which the MDT has forgotten the records of the coordinator and a participant:
//!   the participant for this pair, the coordinator for the pairs with all participants.
//! - A number is settled for a participant when the participant has applied the record, or no MDT
//!   ever will. After a start, a coordinator does not know this of records with several
//!   participants. Such a number is settled when the participant has confirmed it.
//! - The coordinator forgets the settled records of a participant after both have synced them, and
//!   then tells the participant. Neither forgets before it has asked the other one for records.
//! - After a start, an MDT asks each partner for the records that name it, and applies those that
//!   it does not have.

use std::collections::{BTreeMap, BTreeSet};

/// The identity of an operation on several MDTs, Lustre's batch id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Batchid {
    /// The index of the MDT that coordinates the operation.
    pub coordinator: u32,
    /// Its number: grows with each operation of the coordinator, also over restarts.
    pub number: u64,
}

/// A coordinator and one of the other participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    /// The index of the coordinator.
    pub coordinator: u32,
    /// The index of the participant.
    pub participant: u32,
}

/// A record that an MDT keeps.
#[derive(Clone, Debug)]
struct Kept {
    /// The other MDTs that it names.
    named: BTreeSet<u32>,
    /// Those with which this MDT has not forgotten it.
    awaited: BTreeSet<u32>,
}

/// The ledger of one MDT.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// The index of this MDT.
    own: u32,
    kept: BTreeMap<Batchid, Kept>,
    /// Records of a pair up to this number are forgotten.
    forgotten: BTreeMap<Pair, u64>,
    /// The numbers of operations that this MDT coordinates, each with the participants for which it
    /// is not settled.
    unsettled: BTreeMap<u64, BTreeSet<u32>>,
    /// The last number that this MDT has given to an operation.
    last: u64,
}

impl Ledger {
    /// The ledger of the MDT with the index `own` after a start. `last` is below all new numbers
    /// and not below any earlier one.
    pub(crate) fn new(own: u32, last: u64) -> Ledger {
        Ledger {
            own,
            last,
            ..Ledger::default()
        }
    }

    /// Begins an operation that this MDT coordinates.
    pub(crate) fn begin(&mut self, participants: impl IntoIterator<Item = u32>) -> Batchid {
        self.last += 1;
        self.unsettled
            .insert(self.last, participants.into_iter().collect());
        Batchid {
            coordinator: self.own,
            number: self.last,
        }
    }

    /// The operation has ended: all MDTs have applied its record, or none ever will.
    pub(crate) fn end(&mut self, batchid: Batchid) {
        self.unsettled.remove(&batchid.number);
    }

    /// Whether all numbers are settled.
    pub(crate) fn is_quiet(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Notes that this MDT has applied a record that also names the MDTs `named`, and keeps it.
    pub(crate) fn keep(&mut self, batchid: Batchid, named: BTreeSet<u32>) {
        let Batchid { coordinator, number } = batchid;
        self.note_number(coordinator, number);
        let awaited = match coordinator == self.own {
            true => named
                .iter()
                .copied()
                .filter(|mdt| number > self.forgotten(coordinator, *mdt))
                .collect(),
            false => BTreeSet::from([coordinator]),
        };
        self.kept.insert(batchid, Kept { named, awaited });
    }

    /// As [`Ledger::keep`], after a start: if this MDT coordinates, some of several participants
    /// may lack the record.
    pub(crate) fn keep_unconfirmed(&mut self, batchid: Batchid, named: BTreeSet<u32>) {
        if batchid.coordinator == self.own && named.len() > 1 {
            self.unsettled.insert(batchid.number, named.clone());
        }
        self.keep(batchid, named);
    }

    /// The records of earlier starts that a participant has not confirmed.
    pub(crate) fn unconfirmed(&self, participant: u32) -> Vec<Batchid> {
        let of_participant = self
            .unsettled
            .iter()
            .filter(|(_, with)| with.contains(&participant));
        let batchids = of_participant.map(|(number, _)| Batchid {
            coordinator: self.own,
            number: *number,
        });
        batchids
            .filter(|batchid| self.kept.contains_key(batchid))
            .collect()
    }

    /// A participant has confirmed that it has a record.
    pub(crate) fn confirm(&mut self, batchid: Batchid, participant: u32) {
        if let Some(with) = self.unsettled.get_mut(&batchid.number) {
            with.remove(&participant);
            if with.is_empty() {
                self.unsettled.remove(&batchid.number);
            }
        }
    }

    /// The pair of this MDT and `other` that a record belongs to.
    fn pair(&self, coordinator: u32, other: u32) -> Pair {
        let participant = match coordinator == self.own {
            true => other,
            false => self.own,
        };
        Pair {
            coordinator,
            participant,
        }
    }

    /// Whether this MDT has applied a record that also names the MDTs `named`.
    pub(crate) fn has(&self, batchid: Batchid, named: &BTreeSet<u32>) -> bool {
        let Batchid { coordinator, number } = batchid;
        let is_forgotten = |mdt: &u32| number <= self.forgotten(coordinator, *mdt);
        self.kept.contains_key(&batchid) || (!named.is_empty() && named.iter().all(is_forgotten))
    }

    /// The number up to which records of this coordinator that name this MDT and `other` are
    /// forgotten. If another MDT coordinates, the same for all others.
    pub(crate) fn forgotten(&self, coordinator: u32, other: u32) -> u64 {
        let pair = self.pair(coordinator, other);
        self.forgotten.get(&pair).copied().unwrap_or(0)
    }

    /// The number of records that this MDT keeps.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// The kept records that name `other`, after `after`.
    pub(crate) fn naming(&self, other: u32, after: Batchid) -> impl Iterator<Item = Batchid> + '_ {
        let later = self
            .kept
            .range(after..)
            .filter(move |(batchid, _)| **batchid > after);
        later
            .filter(move |(_, kept)| kept.named.contains(&other))
            .map(|(batchid, _)| *batchid)
    }

    /// The participants of records that this MDT coordinates and has not forgotten with them.
    pub(crate) fn participants(&self) -> BTreeSet<u32> {
        let own = self
            .kept
            .iter()
            .filter(|(batchid, _)| batchid.coordinator == self.own);
        own.flat_map(|(_, kept)| kept.awaited.iter().copied()).collect()
    }

    /// The number up to which all operations that this MDT coordinates with a participant are
    /// settled.
    pub(crate) fn settled(&self, participant: u32) -> u64 {
        let mut unsettled = self.unsettled.iter();
        let first = unsettled.find(|(_, with)| with.contains(&participant));
        first.map_or(self.last, |(number, _)| number - 1)
    }

    /// Forgets the records of this coordinator that name this MDT and `other`, up to a number.
    /// Returns the records to remove, and the pair with the new mark; `None` if the mark is not
    /// higher than before. The coordinator removes a record when it has forgotten it with all
    /// participants.
    pub(crate) fn forget(
        &mut self,
        coordinator: u32,
        other: u32,
        number: u64,
    ) -> Option<(Vec<Batchid>, Pair)> {
        if number <= self.forgotten(coordinator, other) {
            return None;
        }
        let first = Batchid {
            coordinator,
            number: 0,
        };
        let last = Batchid { coordinator, number };
        let mut forgotten = Vec::new();
        for (batchid, kept) in self.kept.range_mut(first..=last) {
            kept.awaited.remove(&other);
            if kept.awaited.is_empty() {
                forgotten.push(*batchid);
            }
        }
        for batchid in &forgotten {
            self.kept.remove(batchid);
        }
        let pair = self.pair(coordinator, other);
        self.set_forgotten(pair, number);
        Some((forgotten, pair))
    }

    /// New numbers are above all known ones.
    fn note_number(&mut self, coordinator: u32, number: u64) {
        if coordinator == self.own {
            self.last = self.last.max(number);
        }
    }

    /// Notes the mark of a pair, as a start has read it. The start reads the marks first.
    pub(crate) fn set_forgotten(&mut self, pair: Pair, number: u64) {
        self.note_number(pair.coordinator, number);
        self.forgotten.insert(pair, number);
    }
}

#[cfg(test)]
mod tests;

//! The ledger of an MDT: which update records it keeps, and which ones it may forget.
//!
//! Pure. The rules (docs/decisions/010-operations-on-several-mdts.md):
//!
//! - An MDT has an update record if it keeps the record, or if its number is not above the mark up
//!   to which the MDT has forgotten the records of this pair of MDTs.
//! - A number is settled when its operation has ended: all participants have applied the record, or
//!   none ever will.
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

/// The ledger of one MDT.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// The index of this MDT.
    own: u32,
    /// The records that it keeps, each with the other MDT that it names.
    kept: BTreeMap<Batchid, u32>,
    /// Records of a pair up to this number are forgotten.
    forgotten: BTreeMap<Pair, u64>,
    /// The numbers of operations that this MDT coordinates now, each with the participant.
    in_flight: BTreeMap<u64, u32>,
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
    pub(crate) fn begin(&mut self, participant: u32) -> Batchid {
        self.last += 1;
        self.in_flight.insert(self.last, participant);
        Batchid {
            coordinator: self.own,
            number: self.last,
        }
    }

    /// The operation has ended: both MDTs have applied its record, or neither ever will.
    pub(crate) fn end(&mut self, batchid: Batchid) {
        self.in_flight.remove(&batchid.number);
    }

    /// Whether no operation of this MDT is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Notes that this MDT has applied a record that names `other`, and keeps it.
    pub(crate) fn keep(&mut self, batchid: Batchid, other: u32) {
        self.note_number(batchid.coordinator, batchid.number);
        self.kept.insert(batchid, other);
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

    /// Whether this MDT has applied a record that names `other`.
    pub(crate) fn has(&self, batchid: Batchid, other: u32) -> bool {
        let forgotten = self.forgotten(batchid.coordinator, other);
        self.kept.contains_key(&batchid) || batchid.number <= forgotten
    }

    /// The number up to which records of this coordinator that name this MDT and `other` are
    /// forgotten.
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
            .filter(move |(_, named)| **named == other)
            .map(|(batchid, _)| *batchid)
    }

    /// The participants of records that this MDT coordinates and keeps.
    pub(crate) fn participants(&self) -> BTreeSet<u32> {
        let own = self
            .kept
            .iter()
            .filter(|(batchid, _)| batchid.coordinator == self.own);
        own.map(|(_, participant)| *participant).collect()
    }

    /// The number up to which all operations that this MDT coordinates with a participant are
    /// settled.
    pub(crate) fn settled(&self, participant: u32) -> u64 {
        let mut in_flight = self.in_flight.iter();
        let first = in_flight.find(|(_, with)| **with == participant);
        first.map_or(self.last, |(number, _)| number - 1)
    }

    /// Forgets the records of this coordinator that name this MDT and `other`, up to a number.
    /// Returns the records that it kept, and the pair with the new mark; `None` if the mark is not
    /// higher than before.
    pub(crate) fn forget(
        &mut self,
        coordinator: u32,
        other: u32,
        number: u64,
    ) -> Option<(Vec<Batchid>, Pair)> {
        if number <= self.forgotten(coordinator, other) {
            return None;
        }
        let is_forgotten = |batchid: &Batchid, named: &u32| {
            batchid.coordinator == coordinator && batchid.number <= number && *named == other
        };
        let forgotten: Vec<Batchid> = self
            .kept
            .iter()
            .filter(|(batchid, named)| is_forgotten(batchid, named))
            .map(|(batchid, _)| *batchid)
            .collect();
        self.kept.retain(|batchid, named| !is_forgotten(batchid, named));
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

    /// Notes the mark of a pair, as a start has read it.
    pub(crate) fn set_forgotten(&mut self, pair: Pair, number: u64) {
        self.note_number(pair.coordinator, number);
        self.forgotten.insert(pair, number);
    }
}

#[cfg(test)]
mod tests;

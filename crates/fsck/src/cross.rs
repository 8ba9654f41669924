//! Compares the layouts of files with the objects of one OST: each stripe has its own object, and
//! each object belongs to a stripe.
//!
//! An OST stores an object when it is first written, so a stripe without an object is correct. Two
//! kinds of objects without a stripe are correct too: ones with an id above the last used id of the
//! MDT that allocates in the sequence, which orphan cleanup destroys when that MDT connects, and
//! ones queued for destruction. A claim is a stripe's reference to an object. Objects arrive in the
//! order of FIDs and the claims of each MDT are sorted the same way: one pass is enough, and it
//! keeps no list of objects.
//!
//! An object belongs to a file of any MDT. If an MDT is missing, objects without a stripe may
//! belong to its files, and are not reported.

use std::collections::BTreeMap;

use mdt::{
    check::{Claim, Examination, show_path},
    layout::StripePlace,
};
use osd::{OsdError, check::Finding};
use ost::check::{ObjectEntry, SequenceTable};
use wire::{Fid, LU_SEQ_RANGE_OST, LuSeqRange, OstIndex};

use crate::targets::Stores;

/// A stripe that claims an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// The index of the MDT with the file.
    pub(crate) mdt: u32,
    pub(crate) file: Fid,
    pub(crate) place: StripePlace,
}

impl Claimant {
    /// Whether the parent FID stored with an object, with the stripe as `f_ver`, names this stripe.
    fn is_parent(&self, parent: Fid) -> bool {
        parent == Fid::new(self.file.f_seq, self.file.f_oid, self.place.stripe.into())
    }
}

/// A contradiction between an MDT and an OST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// Two stripes claim the same object.
    SharedObject {
        ost: OstIndex,
        object: Fid,
        /// The stripe that keeps the object.
        keeper: Claimant,
        /// The stripe that gets a new object.
        loser: Claimant,
    },
    /// A stripe claims an object with a FID that this OST never allocates.
    ImpossibleObject {
        ost: OstIndex,
        object: Fid,
        claimant: Claimant,
    },
    /// The parent FID stored with an object names another file or stripe.
    WrongParent {
        ost: OstIndex,
        object: Fid,
        claimant: Claimant,
        /// The stored parent FID; its `f_ver` is the stripe.
        parent: Fid,
    },
    /// An object of a stripe is queued for destruction.
    QueuedForDestroy {
        ost: OstIndex,
        object: Fid,
        claimant: Claimant,
        /// The MDT with the queue.
        queued_by: u32,
    },
    /// No stripe claims the object.
    Orphan {
        ost: OstIndex,
        object: Fid,
        /// The stored parent FID; zero if none is stored.
        parent: Fid,
        /// The OST serves the object: its sequence belongs to this OST, and its id is not 0.
        is_served: bool,
    },
    /// Objects in use have ids above the MDT's last used id: orphan cleanup would destroy them.
    LowLastUsed {
        mdt: u32,
        ost: OstIndex,
        seq: u64,
        last_used: u32,
        /// The highest id in use.
        highest: u32,
    },
    /// Objects in use have ids above the OST's last created id: the OST would create them again.
    LowLastCreated {
        ost: OstIndex,
        seq: u64,
        last_created: u64,
        /// The highest id in use.
        highest: u32,
    },
    /// An MDT allocates objects in a sequence that does not belong to the OST.
    ForeignSequence { mdt: u32, ost: OstIndex, seq: u64 },
    /// The FLDB has no entry for the OST's sequence range.
    MissingFldbEntry {
        ost: OstIndex,
        range: LuSeqRange,
        /// No other entry overlaps the range.
        is_free: bool,
    },
}

/// The result of examining the MDTs.
pub(crate) struct ExaminedMdts {
    /// The result for each MDT, by index. The claims are sorted.
    pub(crate) mdts: BTreeMap<u32, Examination>,
    /// Whether all MDTs of the file system were examined.
    pub(crate) is_complete: bool,
}

/// The part of an examined MDT on the OST.
struct OfMdt<'a> {
    index: u32,
    examined: &'a Examination,
    /// The claims on this OST that are not yet compared, sorted by sequence and id.
    claims: &'a [Claim],
    /// The sequence in which the MDT allocates objects of this OST (0: none), and the last id that
    /// it used.
    last_used: (u64, u32),
}

impl<'a> OfMdt<'a> {
    fn new(ost: OstIndex, index: u32, examined: &'a Examination) -> OfMdt<'a> {
        let all = &examined.claims;
        let from = all.partition_point(|c| c.ost < ost);
        let to = all.partition_point(|c| c.ost <= ost);
        OfMdt {
            index,
            examined,
            claims: &all[from..to],
            last_used: examined.last_used.get(&ost).copied().unwrap_or_default(),
        }
    }

    /// Takes the claims on an object, which no earlier claim precedes.
    fn take(&mut self, id: (u64, u32)) -> impl Iterator<Item = Claimant> + use<'a> {
        let count = self.claims.iter().take_while(|c| c.object == id).count();
        let (taken, rest) = self.claims.split_at(count);
        self.claims = rest;
        let (mdt, examined) = (self.index, self.examined);
        taken.iter().map(move |claim| Claimant {
            mdt,
            file: examined.file(claim),
            place: claim.place,
        })
    }
}

/// Compares one OST's objects with the claims on it.
pub(crate) struct CrossCheck<'a> {
    ost: OstIndex,
    sequences: &'a SequenceTable,
    /// The examined MDTs. If there are none, nothing is compared.
    mdts: Vec<OfMdt<'a>>,
    /// Whether these are all MDTs of the file system.
    is_complete: bool,
    /// The highest claimed object id of each sequence.
    highest_ids: BTreeMap<u64, u32>,
    mismatches: Vec<Mismatch>,
}

impl<'a> CrossCheck<'a> {
    /// Starts the comparison.
    pub(crate) fn new(
        ost: OstIndex,
        sequences: &'a SequenceTable,
        examined: &'a ExaminedMdts,
    ) -> CrossCheck<'a> {
        let mdts = examined.mdts.iter();
        CrossCheck {
            ost,
            sequences,
            mdts: mdts.map(|(index, mdt)| OfMdt::new(ost, *index, mdt)).collect(),
            is_complete: examined.is_complete,
            highest_ids: BTreeMap::new(),
            mismatches: Vec::new(),
        }
    }

    /// Compares the OST's next object with the claims.
    pub(crate) fn add_object(&mut self, object: ObjectEntry) {
        let id = (object.fid.f_seq, object.fid.f_oid);
        self.take_claims_below(id);
        if self.take_claims_on(id, object.parent) || !self.is_complete {
            return;
        }
        let is_above_last_used = |mdt: &OfMdt<'_>| id.0 == mdt.last_used.0 && id.1 > mdt.last_used.1;
        if !self.mdts.iter().any(is_above_last_used) && self.queue_with(object.fid).is_none() {
            self.mismatches.push(Mismatch::Orphan {
                ost: self.ost,
                object: object.fid,
                parent: object.parent,
                is_served: self.sequences.is_allocated(id.0) && id.1 != 0,
            });
        }
    }

    /// Ends the comparison after the OST's last object. Returns all contradictions.
    pub(crate) fn finish(mut self) -> Vec<Mismatch> {
        self.take_claims_below((u64::MAX, u32::MAX));
        let ost = self.ost;
        for of_mdt in &self.mdts {
            let (mdt, seq) = (of_mdt.index, of_mdt.last_used.0);
            if seq != 0 && !self.sequences.is_allocated(seq) {
                self.mismatches.push(Mismatch::ForeignSequence { mdt, ost, seq });
            }
        }
        for (&seq, &highest) in &self.highest_ids {
            let last_created = self.sequences.last(seq);
            let allocator = self.mdts.iter().find(|mdt| mdt.last_used.0 == seq);
            // Ids up to the MDT's last used id need no repair: when the MDT connects, the OST
            // creates its objects up to that id.
            let created_on_connect = allocator.is_some_and(|mdt| highest <= mdt.last_used.1);
            if let Some(mdt) = allocator.filter(|_| !created_on_connect) {
                self.mismatches.push(Mismatch::LowLastUsed {
                    mdt: mdt.index,
                    ost,
                    seq,
                    last_used: mdt.last_used.1,
                    highest,
                });
            }
            if u64::from(highest) > last_created && !created_on_connect {
                self.mismatches.push(Mismatch::LowLastCreated {
                    ost,
                    seq,
                    last_created,
                    highest,
                });
            }
        }
        // MDT0000 has the whole FLDB.
        if let Some(mdt0) = self
            .mdts
            .iter()
            .find(|mdt| mdt.index == 0)
            .map(|mdt| mdt.examined)
        {
            self.check_fldb(mdt0);
        }
        self.mismatches
    }

    /// Takes the claims on objects below `id`. These objects do not exist: they were never written,
    /// or were lost with unsynced data.
    fn take_claims_below(&mut self, id: (u64, u32)) {
        let first = |mdts: &[OfMdt<'_>]| {
            let firsts = mdts.iter().filter_map(|mdt| mdt.claims.first());
            firsts.map(|claim| claim.object).min()
        };
        while let Some(next) = first(&self.mdts).filter(|object| *object < id) {
            self.take_claims_on(next, Fid::ZERO);
        }
    }

    /// Takes the claims on one object; returns whether there are any. `parent` is the parent FID
    /// stored with the object; zero without an object or a parent.
    fn take_claims_on(&mut self, id: (u64, u32), parent: Fid) -> bool {
        let claimants: Vec<Claimant> = self.mdts.iter_mut().flat_map(|mdt| mdt.take(id)).collect();
        let (ost, object) = (self.ost, Fid::new(id.0, id.1, 0));
        let is_keeper = claimants.iter().position(|c| c.is_parent(parent));
        let keeper = is_keeper.unwrap_or(0);
        let Some(&claimant) = claimants.get(keeper) else {
            return false;
        };
        for (_, &loser) in claimants.iter().enumerate().filter(|(n, _)| *n != keeper) {
            self.mismatches.push(Mismatch::SharedObject {
                ost,
                object,
                keeper: claimant,
                loser,
            });
        }
        if !self.sequences.is_allocated(id.0) || id.1 == 0 {
            self.mismatches.push(Mismatch::ImpossibleObject {
                ost,
                object,
                claimant,
            });
            return true;
        }
        let highest = self.highest_ids.entry(id.0).or_default();
        *highest = id.1.max(*highest);
        if !parent.is_zero() && is_keeper.is_none() {
            self.mismatches.push(Mismatch::WrongParent {
                ost,
                object,
                claimant,
                parent,
            });
        }
        if let Some(queued_by) = self.queue_with(object) {
            self.mismatches.push(Mismatch::QueuedForDestroy {
                ost,
                object,
                claimant,
                queued_by,
            });
        }
        true
    }

    /// The MDT that has queued the object for destruction.
    fn queue_with(&self, object: Fid) -> Option<u32> {
        let entry = (self.ost, object);
        let has_it = |mdt: &&OfMdt<'_>| mdt.examined.destroy_queue.binary_search(&entry).is_ok();
        self.mdts.iter().find(has_it).map(|mdt| mdt.index)
    }

    /// Checks that the FLDB has an entry for the OST's sequence range.
    fn check_fldb(&mut self, examined: &Examination) {
        let (start, end, _) = self.sequences.range;
        if start >= end {
            return;
        }
        let range = LuSeqRange {
            lsr_start: start,
            lsr_end: end,
            lsr_index: self.ost.0,
            lsr_flags: LU_SEQ_RANGE_OST,
        };
        if !examined.fldb.contains(&range) {
            let overlaps = |r: &LuSeqRange| r.lsr_start < end && start < r.lsr_end;
            let is_free = !examined.fldb.iter().any(overlaps);
            self.mismatches.push(Mismatch::MissingFldbEntry {
                ost: self.ost,
                range,
                is_free,
            });
        }
    }
}

impl Mismatch {
    /// Describes the contradiction, with paths and sizes from `stores`.
    pub(crate) async fn finding(&self, stores: &Stores) -> Result<Finding, OsdError> {
        let place = async |claimant: Claimant| {
            let Claimant { mdt, file, place } = claimant;
            let path = match stores.mdts.get(&mdt) {
                Some(mdt) => show_path(&mdt.store, file).await,
                None => String::new(),
            };
            format!("{path} {file} {place}").trim_start().to_owned()
        };
        let new = |kind, fid, place: String, expected: &str, found: String, repair| Finding {
            kind,
            fid,
            place,
            expected: expected.into(),
            found,
            repair,
        };
        let seq_of = |seq: u64| format!("sequence {seq:#x}");
        Ok(match self {
            Mismatch::SharedObject {
                object,
                keeper,
                loser,
                ..
            } => new(
                "object of two stripes",
                Some(*object),
                place(*loser).await,
                "a separate object for each stripe",
                format!("the object of {}", place(*keeper).await),
                Some("gives the stripe a new, empty object"),
            ),
            Mismatch::ImpossibleObject { object, claimant, .. } => new(
                "impossible object",
                Some(*object),
                place(*claimant).await,
                "an object of a sequence of this OST",
                "another sequence, or object id 0".into(),
                Some("gives the stripe a new, empty object"),
            ),
            Mismatch::WrongParent {
                object,
                claimant,
                parent,
                ..
            } => new(
                "wrong parent",
                Some(*object),
                place(*claimant).await,
                "an object whose parent is this file and stripe",
                format!("parent {parent}"),
                Some("sets the parent of the object"),
            ),
            Mismatch::QueuedForDestroy { object, claimant, .. } => new(
                "object in use is queued for destruction",
                Some(*object),
                place(*claimant).await,
                "only objects of removed files in the destroy queue",
                "an object of this file".into(),
                Some("removes it from the queue"),
            ),
            Mismatch::Orphan {
                ost,
                object,
                parent,
                is_served,
            } => {
                let attr = match stores.osts.get(ost) {
                    Some(ost) => ost.store.attr(*object).await?,
                    None => osd::ObjAttr::default(),
                };
                let parent = match parent.is_zero() {
                    true => "no parent".into(),
                    false => format!("parent {parent}"),
                };
                let repair = match (is_served, attr.size) {
                    (false, _) => None,
                    (true, 0) => Some("destroys the object"),
                    (true, _) => Some("makes a file of the object in lost+found"),
                };
                new(
                    "orphan object",
                    Some(*object),
                    format!("object {object}"),
                    "a file whose layout names it",
                    format!("no such file; the object has {} bytes and {parent}", attr.size),
                    repair,
                )
            }
            Mismatch::LowLastUsed {
                seq,
                last_used,
                highest,
                ..
            } => new(
                "objects in use above the MDT's last used id",
                None,
                seq_of(*seq),
                "no object in use above the last used id that the MDT recorded",
                format!("{highest:#x} is in use, {last_used:#x} is recorded"),
                Some("records the higher id"),
            ),
            Mismatch::LowLastCreated {
                seq,
                last_created,
                highest,
                ..
            } => new(
                "objects in use above the OST's last created id",
                None,
                seq_of(*seq),
                "no object in use above the last created id that the OST recorded",
                format!("{highest:#x} is in use, {last_created:#x} is recorded"),
                Some("records the higher id"),
            ),
            Mismatch::ForeignSequence { seq, .. } => new(
                "foreign sequence",
                None,
                seq_of(*seq),
                "objects allocated in a sequence of this OST",
                "another sequence".into(),
                Some("makes the MDT request a new sequence"),
            ),
            Mismatch::MissingFldbEntry { range, is_free, .. } => new(
                "sequences not in the FLDB",
                None,
                seq_of(range.lsr_start),
                "an FLDB entry for this OST's sequences",
                if *is_free {
                    "no entry"
                } else {
                    "a different entry that overlaps"
                }
                .into(),
                is_free.then_some("adds the entry"),
            ),
        })
    }
}

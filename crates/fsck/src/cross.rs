//! Layouts of files against the objects of one OST: each stripe has an object that is its own, each object is a stripe's.
//!
//! Objects are made when they are first written, so that a stripe without one is as it should be. An object above the mark
//! (the id that none in use is above) is stock that was made ahead, and one that is queued to be destroyed will be:
//! neither is missed by anybody. Objects come in the order of FIDs, claims are sorted alike: one pass, nothing kept.

use std::collections::BTreeMap;

use mdt::check::{Claim, Examined, show_path};
use osd::{OsdError, check::Finding};
use ost::check::{ObjectEntry, SequenceTable};
use wire::{Fid, LU_SEQ_RANGE_OST, LuSeqRange, OstIndex};

use crate::targets::Stores;

/// Something that is wrong between the MDT and an OST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Two stripes have one object.
    Shared {
        ost: OstIndex,
        object: Fid,
        /// The one that keeps it.
        keeps: (Fid, u16),
        /// The one that does not.
        loses: (Fid, u16),
    },
    /// A stripe has an object that the OST cannot have.
    Impossible {
        ost: OstIndex,
        object: Fid,
        of: (Fid, u16),
    },
    /// An object says that it is of another file, or another stripe.
    WrongParent {
        ost: OstIndex,
        object: Fid,
        of: (Fid, u16),
        says: Fid,
    },
    /// An object is a stripe's, and to be destroyed.
    Condemned {
        ost: OstIndex,
        object: Fid,
        of: (Fid, u16),
    },
    /// An object is nobody's.
    Orphan {
        ost: OstIndex,
        object: Fid,
        says: Fid,
        /// Whether the OST gives access to it.
        usable: bool,
    },
    /// Objects are in use that would be removed as not in use.
    LowMark {
        ost: OstIndex,
        seq: u64,
        mark: u32,
        used: u32,
    },
    /// Objects are in use that would be made again.
    LowLast {
        ost: OstIndex,
        seq: u64,
        last: u64,
        used: u32,
    },
    /// Objects are made in a sequence that the OST never gave.
    ForeignMark { ost: OstIndex, seq: u64 },
    /// The OST's sequences cannot be located.
    NotLocated {
        ost: OstIndex,
        range: LuSeqRange,
        free: bool,
    },
}

/// The comparison of one OST's objects with the claims on it.
pub(crate) struct Cross<'a> {
    ost: OstIndex,
    sequences: &'a SequenceTable,
    examined: Option<&'a Examined>,
    /// The claims on this OST that were not passed yet.
    claims: &'a [Claim],
    mark: (u64, u32),
    /// The highest id in use of each sequence.
    used: BTreeMap<u64, u32>,
    problems: Vec<Problem>,
}

impl<'a> Cross<'a> {
    /// Begins. `examined` has its claims sorted; without it nothing can be compared.
    pub(crate) fn new(
        ost: OstIndex,
        sequences: &'a SequenceTable,
        examined: Option<&'a Examined>,
    ) -> Cross<'a> {
        let claims = examined.map_or(&[][..], |e| {
            let from = e.claims.partition_point(|c| c.ost < ost);
            let to = e.claims.partition_point(|c| c.ost <= ost);
            &e.claims[from..to]
        });
        let mark = examined
            .and_then(|e| e.marks.get(&ost))
            .copied()
            .unwrap_or_default();
        Cross {
            ost,
            sequences,
            examined,
            claims,
            mark,
            used: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    /// The next object that is there.
    pub(crate) fn object(&mut self, object: ObjectEntry) {
        let Some(examined) = self.examined else { return };
        let id = (object.fid.f_seq, object.fid.f_oid);
        self.claims_before(id);
        if self.claims.first().is_some_and(|c| c.object == id) {
            self.claims_on(id, object.parent);
            return;
        }
        let is_stock = id.0 == self.mark.0 && id.1 > self.mark.1;
        if !is_stock && !self.is_condemned(examined, object.fid) {
            self.problems.push(Problem::Orphan {
                ost: self.ost,
                object: object.fid,
                says: object.parent,
                usable: self.sequences.is_allocated(id.0) && id.1 != 0,
            });
        }
    }

    /// All objects were there; what is wrong.
    pub(crate) fn end(mut self) -> Vec<Problem> {
        let Some(examined) = self.examined else {
            return self.problems;
        };
        self.claims_before((u64::MAX, u32::MAX));
        let (ost, mark) = (self.ost, self.mark);
        if mark.0 != 0 && !self.sequences.is_allocated(mark.0) {
            self.problems.push(Problem::ForeignMark { ost, seq: mark.0 });
        }
        for (&seq, &used) in &self.used {
            let last = self.sequences.last(seq);
            if seq == mark.0 && used > mark.1 {
                self.problems.push(Problem::LowMark {
                    ost,
                    seq,
                    mark: mark.1,
                    used,
                });
            }
            // Up to the mark the MDT has the OST make them again when it connects.
            let healed = seq == mark.0 && used <= mark.1;
            if u64::from(used) > last && !healed {
                self.problems.push(Problem::LowLast { ost, seq, last, used });
            }
        }
        self.located(examined);
        self.problems
    }

    /// Claims on objects that are not there: never written, or lost with what was not synced.
    fn claims_before(&mut self, id: (u64, u32)) {
        while let Some(next) = self
            .claims
            .first()
            .map(|c| c.object)
            .filter(|object| *object < id)
        {
            self.claims_on(next, Fid::ZERO);
        }
    }

    /// Takes the claims on one object, which says that it is a part of `says`.
    fn claims_on(&mut self, id: (u64, u32), says: Fid) {
        let Some(examined) = self.examined else { return };
        let count = self.claims.iter().take_while(|c| c.object == id).count();
        let (these, rest) = self.claims.split_at(count);
        self.claims = rest;
        let (ost, object) = (self.ost, Fid::new(id.0, id.1, 0));
        let whose = |c: &Claim| (examined.file(c), c.stripe);
        let says_so = |c: &&Claim| {
            let (file, stripe) = whose(c);
            says == Fid::new(file.f_seq, file.f_oid, stripe.into())
        };
        let Some(keeps) = these.iter().find(says_so).or(these.first()) else {
            return;
        };
        let of = whose(keeps);
        for claim in these.iter().filter(|c| *c != keeps) {
            self.problems.push(Problem::Shared {
                ost,
                object,
                keeps: of,
                loses: whose(claim),
            });
        }
        if !self.sequences.is_allocated(id.0) || id.1 == 0 {
            self.problems.push(Problem::Impossible { ost, object, of });
            return;
        }
        let used = self.used.entry(id.0).or_default();
        *used = id.1.max(*used);
        if !says.is_zero() && !says_so(&keeps) {
            self.problems.push(Problem::WrongParent {
                ost,
                object,
                of,
                says,
            });
        }
        if self.is_condemned(examined, object) {
            self.problems.push(Problem::Condemned { ost, object, of });
        }
    }

    fn is_condemned(&self, examined: &Examined, object: Fid) -> bool {
        examined.destroyed.binary_search(&(self.ost, object)).is_ok()
    }

    /// Whether the location database knows the OST's sequences.
    fn located(&mut self, examined: &Examined) {
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
        if !examined.located.contains(&range) {
            let overlaps = |r: &LuSeqRange| r.lsr_start < end && start < r.lsr_end;
            let free = !examined.located.iter().any(overlaps);
            self.problems.push(Problem::NotLocated {
                ost: self.ost,
                range,
                free,
            });
        }
    }
}

impl Problem {
    /// As it is told; `stores` know paths and sizes.
    pub(crate) async fn finding(&self, stores: &Stores) -> Result<Finding, OsdError> {
        let place = |(file, stripe): (Fid, u16)| {
            let path = stores
                .mdt
                .as_ref()
                .map_or(String::new(), |mdt| show_path(&mdt.store, file));
            format!("{path} {file} stripe {stripe}").trim_start().to_owned()
        };
        let new = |what, fid, place: String, expected: &str, found: String, repair| Finding {
            what,
            fid,
            place,
            expected: expected.into(),
            found,
            repair,
        };
        let seq_of = |seq: u64| format!("sequence {seq:#x}");
        Ok(match self {
            Problem::Shared {
                object, keeps, loses, ..
            } => new(
                "object of two files",
                Some(*object),
                place(*loses),
                "an object of its own",
                format!("that of {}", place(*keeps)),
                Some("gives it a new, empty one"),
            ),
            Problem::Impossible { object, of, .. } => new(
                "impossible object",
                Some(*object),
                place(*of),
                "an object of a sequence of this OST",
                "another".into(),
                Some("gives the file a new, empty one"),
            ),
            Problem::WrongParent { object, of, says, .. } => new(
                "wrong parent",
                Some(*object),
                place(*of),
                "an object that says that it is of this file and stripe",
                format!("it says {says}"),
                Some("makes it say so"),
            ),
            Problem::Condemned { object, of, .. } => new(
                "object in use is to be destroyed",
                Some(*object),
                place(*of),
                "only objects of removed files in the queue of those to destroy",
                "one of this file".into(),
                Some("takes it from the queue"),
            ),
            Problem::Orphan {
                ost,
                object,
                says,
                usable,
            } => {
                let attr = match stores.osts.get(ost) {
                    Some(ost) => ost.store.attr(*object).await?,
                    None => osd::ObjAttr::default(),
                };
                let parent = match says.is_zero() {
                    true => "does not say whose it is".into(),
                    false => format!("says it is of {says}"),
                };
                let repair = match (usable, attr.size) {
                    (false, _) => None,
                    (true, 0) => Some("destroys it"),
                    (true, _) => Some("makes a file of it in lost+found"),
                };
                new(
                    "orphan object",
                    Some(*object),
                    format!("object {object}"),
                    "a file whose layout has it",
                    format!("none; it has {} bytes and {parent}", attr.size),
                    repair,
                )
            }
            Problem::LowMark { seq, mark, used, .. } => new(
                "objects in use above the mark",
                None,
                seq_of(*seq),
                "no object in use above the id that the MDT notes",
                format!("{used:#x} is in use, {mark:#x} is noted"),
                Some("notes the id"),
            ),
            Problem::LowLast { seq, last, used, .. } => new(
                "objects in use above the last",
                None,
                seq_of(*seq),
                "no object in use above the last one made",
                format!("{used:#x} is in use, {last:#x} is the last"),
                Some("makes it the last"),
            ),
            Problem::ForeignMark { seq, .. } => new(
                "foreign sequence",
                None,
                seq_of(*seq),
                "objects made in a sequence of this OST",
                "in another".into(),
                Some("has the MDT ask for a sequence"),
            ),
            Problem::NotLocated { range, free, .. } => new(
                "sequences not located",
                None,
                seq_of(range.lsr_start),
                "this OST's sequences in the location database",
                if *free { "nobody's" } else { "somebody else's" }.into(),
                free.then_some("notes them"),
            ),
        })
    }
}

//! The rules of the ledger in a model of several MDTs with crashes. A run takes random steps, then
//! restarts every MDT and lets all operations end. Afterwards each record must be applied exactly
//! once on each of its MDTs, or on none. No MDT may apply a record after it has served others
//! without the locks of the operation.

use std::collections::{BTreeMap, BTreeSet};

use super::{Batchid, Ledger};

const MDTS: u32 = 4;
const STEPS: usize = 160;
const RUNS: u64 = 3000;
/// Some mistakes need a rare order of crashes.
const RUNS_WITH_MISTAKE: u64 = 100_000;

/// A rule that a run violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    ForgetsBeforeSync,
    ForgetsInFlight,
    ForgetsBeforePull,
    ForgetsUnconfirmed,
    ServesWithoutPull,
    PullOvertakesOperation,
    PullsOnce,
    MarksAreIgnored,
    MarksAreLost,
    SessionsEndWithCoordinator,
    DecidedOperationBeginsAgain,
    AppliesWithoutJoin,
}

/// A change of an MDT's store.
#[derive(Clone, Debug)]
enum Event {
    Kept(Batchid, BTreeSet<u32>),
    Forgotten {
        coordinator: u32,
        other: u32,
        number: u64,
    },
}

/// The locks of an operation on a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Session {
    Prepared,
    /// The operation may be decided.
    Joined,
    /// The coordinator has crashed since.
    Held,
}

/// How far a start has come in asking the others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asking {
    First(BTreeSet<u32>),
    Second(BTreeSet<u32>),
    Done,
}

/// An MDT.
#[derive(Clone, Debug)]
struct Node {
    index: u32,
    log: Vec<Event>,
    durable: usize,
    ledger: Ledger,
    start: u64,
    is_up: bool,
    asking: Asking,
    sessions: BTreeMap<Batchid, Session>,
    /// The MDTs that may hold sessions of an earlier start of this one.
    unresolved: BTreeSet<u32>,
}

/// An operation in flight.
#[derive(Clone, Debug)]
struct Operation {
    batchid: Batchid,
    participants: Vec<u32>,
    /// The number of participants that have joined.
    joined: usize,
    /// The number of participants that have applied their share and said so.
    given: usize,
}

impl Operation {
    fn names(&self, mdt: u32) -> bool {
        self.batchid.coordinator == mdt || self.participants.contains(&mdt)
    }

    /// The MDTs that the record names, except one.
    fn others(&self, mdt: u32) -> BTreeSet<u32> {
        let mut all: BTreeSet<u32> = self.participants.iter().copied().collect();
        all.insert(self.batchid.coordinator);
        all.remove(&mdt);
        all
    }
}

#[derive(Debug)]
struct Model {
    nodes: Vec<Node>,
    operations: Vec<Operation>,
    random: u64,
    mistake: Option<Mistake>,
    is_violated: bool,
}

impl Node {
    fn is_ready(&self) -> bool {
        self.is_up && self.asking == Asking::Done
    }

    fn keep(&mut self, batchid: Batchid, named: BTreeSet<u32>, is_redone: bool) {
        self.log.push(Event::Kept(batchid, named.clone()));
        match is_redone {
            true => self.ledger.keep_unconfirmed(batchid, named),
            false => self.ledger.keep(batchid, named),
        }
    }

    fn forget(&mut self, coordinator: u32, other: u32, number: u64) {
        if self.ledger.forget(coordinator, other, number).is_some() {
            self.log.push(Event::Forgotten {
                coordinator,
                other,
                number,
            });
        }
    }

    fn crash(&mut self) {
        self.log.truncate(self.durable);
        self.is_up = false;
        self.sessions.clear();
    }

    fn restart(&mut self, loses_marks: bool) {
        self.start += 1;
        self.is_up = true;
        self.ledger = Ledger::new(self.index, self.start << 32);
        for event in &self.log {
            match event.clone() {
                Event::Kept(batchid, named) => self.ledger.keep_unconfirmed(batchid, named),
                Event::Forgotten {
                    coordinator,
                    other,
                    number,
                } => {
                    let (_, pair) = self
                        .ledger
                        .forget(coordinator, other, number)
                        .expect("marks grow");
                    if loses_marks {
                        self.ledger.set_forgotten(pair, 0);
                    }
                }
            }
        }
        // The log has what the store has: the records of forgotten numbers are gone.
        let ledger = self.ledger.clone();
        self.ledger
            .unsettled
            .retain(|number, _| ledger.kept.keys().any(|kept| kept.number == *number));
        self.durable = self.log.len();
        let others: BTreeSet<u32> = (0..MDTS).filter(|mdt| *mdt != self.index).collect();
        self.asking = Asking::First(others.clone());
        self.unresolved = others;
    }

    fn times_applied(&self, batchid: Batchid) -> usize {
        let is_it = |event: &&Event| matches!(event, Event::Kept(kept, _) if *kept == batchid);
        self.log.iter().filter(is_it).count()
    }
}

impl Model {
    fn new(seed: u64, mistake: Option<Mistake>) -> Model {
        let node = |index| Node {
            index,
            log: Vec::new(),
            durable: 0,
            ledger: Ledger::new(index, 1 << 32),
            start: 1,
            is_up: true,
            asking: Asking::Done,
            sessions: BTreeMap::new(),
            unresolved: BTreeSet::new(),
        };
        Model {
            nodes: (0..MDTS).map(node).collect(),
            operations: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            mistake,
            is_violated: false,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % n
    }

    fn has_mistake(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn step(&mut self) {
        let a = self.below(MDTS as usize);
        let b = (a + 1 + self.below(MDTS as usize - 1)) % MDTS as usize;
        match self.below(20) {
            0..4 if self.nodes[a].is_ready() => self.begin(a),
            4..10 if !self.operations.is_empty() => {
                let at = self.below(self.operations.len());
                self.advance(at);
            }
            10..12 => self.nodes[a].durable = self.nodes[a].log.len(),
            12 if self.nodes[a].is_ready() && self.may_forget(b) => self.forget(a, b),
            13 if self.nodes[a].is_ready() && self.nodes[b].is_up => self.tell(a, b),
            14 if self.nodes[a].is_up => self.crash(a),
            15 | 16 if !self.nodes[a].is_up => self.restart(a),
            17 if self.nodes[a].is_up => self.ask(a, b),
            18 if self.nodes[a].is_up => (0..MDTS as usize).for_each(|other| self.ask(a, other)),
            19 if self.nodes[a].is_ready() => self.resolve(a, b),
            _ => {}
        }
    }

    /// Begins an operation with one to three participants.
    fn begin(&mut self, coordinator: usize) {
        let mut participants: Vec<u32> = (0..MDTS).filter(|mdt| *mdt != coordinator as u32).collect();
        for _ in 0..self.below(MDTS as usize - 1) {
            let at = self.below(participants.len());
            participants.remove(at);
        }
        if !participants
            .iter()
            .all(|mdt| self.nodes[*mdt as usize].is_ready())
        {
            return;
        }
        let batchid = self.nodes[coordinator].ledger.begin(participants.clone());
        for mdt in &participants {
            let sessions = &mut self.nodes[*mdt as usize].sessions;
            sessions.insert(batchid, Session::Prepared);
        }
        self.operations.push(Operation {
            batchid,
            participants,
            joined: 0,
            given: 0,
        });
    }

    /// Ends an operation that no MDT has applied.
    fn give_up(&mut self, at: usize) {
        let operation = self.operations.swap_remove(at);
        for mdt in &operation.participants {
            self.nodes[*mdt as usize].sessions.remove(&operation.batchid);
        }
        let coordinator = operation.batchid.coordinator as usize;
        self.nodes[coordinator].ledger.end(operation.batchid);
    }

    /// Takes the next step of an operation.
    fn advance(&mut self, at: usize) {
        let operation = self.operations[at].clone();
        let batchid = operation.batchid;
        let count = operation.participants.len();
        let must_join = count > 1 && !self.has_mistake(Mistake::AppliesWithoutJoin);
        if must_join && operation.joined < count {
            let mdt = operation.participants[operation.joined];
            let node = &mut self.nodes[mdt as usize];
            if !node.is_up {
                return;
            }
            match node.sessions.get_mut(&batchid) {
                Some(session) => {
                    *session = Session::Joined;
                    self.operations[at].joined += 1;
                }
                None => self.give_up(at),
            }
            return;
        }
        if operation.given == count {
            let node = &mut self.nodes[batchid.coordinator as usize];
            node.keep(batchid, operation.others(node.index), false);
            node.ledger.end(batchid);
            self.operations.swap_remove(at);
            return;
        }
        let mdt = operation.participants[operation.given];
        let begins_again = operation.given == 0 || self.has_mistake(Mistake::DecidedOperationBeginsAgain);
        let node = &mut self.nodes[mdt as usize];
        if !node.is_up {
            return;
        }
        let named = operation.others(mdt);
        if node.ledger.has(batchid, &named) {
            node.sessions.remove(&batchid);
        } else if node.sessions.remove(&batchid).is_some() {
            node.keep(batchid, named, false);
            if self.below(4) == 0 {
                // The answer is lost.
                return;
            }
        } else if begins_again {
            return self.give_up(at);
        } else {
            self.redo(mdt as usize, batchid, named);
        }
        self.operations[at].given += 1;
    }

    /// An MDT applies a record without the locks of its coordinator, or with held ones.
    fn redo(&mut self, mdt: usize, batchid: Batchid, named: BTreeSet<u32>) {
        let node = &mut self.nodes[mdt];
        let has = match self.mistake {
            Some(Mistake::MarksAreIgnored) => node.ledger.kept.contains_key(&batchid),
            _ => node.ledger.has(batchid, &named),
        };
        if has {
            return;
        }
        self.is_violated |= node.is_ready() && !node.sessions.contains_key(&batchid);
        node.keep(batchid, named, true);
    }

    /// Whether a participant lets the coordinator forget records.
    fn may_forget(&self, participant: usize) -> bool {
        let node = &self.nodes[participant];
        node.is_ready() || (node.is_up && self.has_mistake(Mistake::ForgetsBeforePull))
    }

    /// The coordinator forgets what both have synced.
    fn forget(&mut self, coordinator: usize, participant: usize) {
        let ledger = &self.nodes[coordinator].ledger;
        let settled = match self.mistake {
            Some(Mistake::ForgetsInFlight) => ledger.last,
            Some(Mistake::ForgetsUnconfirmed) => {
                let in_flight = self.operations.iter().filter(|operation| {
                    operation.batchid.coordinator == coordinator as u32 && operation.names(participant as u32)
                });
                let first = in_flight.map(|operation| operation.batchid.number).min();
                first.map_or(ledger.last, |number| number - 1)
            }
            _ => ledger.settled(participant as u32),
        };
        if !self.has_mistake(Mistake::ForgetsBeforeSync) {
            for node in [coordinator, participant] {
                self.nodes[node].durable = self.nodes[node].log.len();
            }
        }
        self.nodes[coordinator].forget(coordinator as u32, participant as u32, settled);
    }

    /// The coordinator tells a participant what it has forgotten.
    fn tell(&mut self, coordinator: usize, participant: usize) {
        let number = self.nodes[coordinator]
            .ledger
            .forgotten(coordinator as u32, participant as u32);
        self.nodes[participant].forget(coordinator as u32, coordinator as u32, number);
    }

    fn crash(&mut self, index: usize) {
        self.nodes[index].crash();
        self.operations
            .retain(|operation| operation.batchid.coordinator != index as u32);
        let drops_joined = self.has_mistake(Mistake::SessionsEndWithCoordinator);
        for node in &mut self.nodes {
            node.sessions.retain(|batchid, session| {
                if batchid.coordinator == index as u32 {
                    if *session == Session::Prepared || drops_joined {
                        return false;
                    }
                    *session = Session::Held;
                }
                true
            });
        }
    }

    fn restart(&mut self, index: usize) {
        let loses_marks = self.has_mistake(Mistake::MarksAreLost);
        self.nodes[index].restart(loses_marks);
        if self.has_mistake(Mistake::ServesWithoutPull) {
            self.nodes[index].asking = Asking::Done;
        }
    }

    /// A restarted MDT asks another one for the records that name it.
    fn ask(&mut self, index: usize, other: usize) {
        let (own, asked) = (index as u32, other as u32);
        let is_second = matches!(self.nodes[index].asking, Asking::Second(_));
        let has_asked = |node: &Node| !matches!(node.asking, Asking::First(_));
        let (Asking::First(left) | Asking::Second(left)) = &self.nodes[index].asking else {
            return;
        };
        if !left.contains(&asked) || !self.nodes[other].is_up || (is_second && !has_asked(&self.nodes[other]))
        {
            return;
        }
        if !self.has_mistake(Mistake::PullOvertakesOperation)
            && !self
                .end_operations(|operation| operation.batchid.coordinator == asked && operation.names(own))
        {
            return;
        }
        let naming = self.nodes[other].ledger.naming(own, Batchid::default());
        for batchid in naming.collect::<Vec<_>>() {
            let mut named = self.nodes[other].ledger.kept[&batchid].named.clone();
            named.remove(&own);
            named.insert(asked);
            self.redo(index, batchid, named);
        }
        let pulls_once = self.has_mistake(Mistake::PullsOnce);
        let node = &mut self.nodes[index];
        let others: BTreeSet<u32> = (0..MDTS).filter(|mdt| *mdt != own).collect();
        node.asking = match node.asking.clone() {
            Asking::First(mut left) => {
                left.remove(&asked);
                match left.is_empty() {
                    true if pulls_once => Asking::Done,
                    true => Asking::Second(others),
                    false => Asking::First(left),
                }
            }
            Asking::Second(mut left) => {
                left.remove(&asked);
                match left.is_empty() {
                    true => Asking::Done,
                    false => Asking::Second(left),
                }
            }
            Asking::Done => Asking::Done,
        };
    }

    /// A restarted coordinator gives a participant the records that it may lack, and ends the
    /// sessions of its earlier start.
    fn resolve(&mut self, index: usize, participant: usize) {
        let (own, other) = (index as u32, participant as u32);
        if !self.nodes[participant].is_up || !self.nodes[index].unresolved.contains(&other) {
            return;
        }
        for batchid in self.nodes[index].ledger.unconfirmed(other) {
            let mut named = self.nodes[index].ledger.kept[&batchid].named.clone();
            named.remove(&other);
            named.insert(own);
            self.redo(participant, batchid, named);
            self.nodes[index].ledger.confirm(batchid, other);
        }
        self.nodes[participant]
            .sessions
            .retain(|batchid, session| batchid.coordinator != own || *session != Session::Held);
        self.nodes[index].unresolved.remove(&other);
    }

    /// Lets operations take steps until they have ended. False: one waits for an MDT that is down.
    fn end_operations(&mut self, is_chosen: impl Fn(&Operation) -> bool) -> bool {
        for _ in 0..2000 {
            let Some(at) = self.operations.iter().position(&is_chosen) else {
                return true;
            };
            self.advance(at);
        }
        !self.operations.iter().any(is_chosen)
    }

    /// Restarts all MDTs, and ends all operations. Returns whether the MDTs agree.
    fn end(mut self) -> bool {
        for index in 0..MDTS as usize {
            if !self.nodes[index].is_up {
                self.restart(index);
            }
        }
        let pairs = || (0..MDTS as usize).flat_map(|a| (0..MDTS as usize).map(move |b| (a, b)));
        for _ in 0..4 {
            pairs().filter(|(a, b)| a != b).for_each(|(a, b)| self.ask(a, b));
        }
        assert!(
            self.nodes.iter().all(Node::is_ready),
            "the starts wait for each other"
        );
        assert!(self.end_operations(|_| true), "an operation does not end");
        pairs()
            .filter(|(a, b)| a != b)
            .for_each(|(a, b)| self.resolve(a, b));
        assert!(
            self.nodes.iter().all(|node| node.sessions.is_empty()),
            "a name stays locked"
        );
        let kept = self.nodes.iter().flat_map(|node| &node.log);
        let records: BTreeMap<Batchid, usize> = kept
            .filter_map(|event| match event {
                Event::Kept(batchid, named) => Some((*batchid, named.len() + 1)),
                Event::Forgotten { .. } => None,
            })
            .collect();
        !self.is_violated
            && records.iter().all(|(batchid, count)| {
                let times: Vec<usize> = self
                    .nodes
                    .iter()
                    .map(|node| node.times_applied(*batchid))
                    .collect();
                times.iter().sum::<usize>() == *count && times.iter().all(|times| *times <= 1)
            })
    }
}

/// Whether the MDTs do not agree after a run.
fn fails(seed: u64, mistake: Option<Mistake>) -> bool {
    let mut model = Model::new(seed, mistake);
    (0..STEPS).for_each(|_| model.step());
    !model.end()
}

#[test]
fn crashes_leave_each_operation_on_all_its_mdts_or_on_none() {
    let failed = (1..=RUNS).find(|seed| fails(*seed, None));
    assert_eq!(failed, None);
}

#[test]
fn the_model_finds_each_mistake() {
    for mistake in [
        Mistake::ForgetsBeforeSync,
        Mistake::ForgetsInFlight,
        Mistake::ForgetsBeforePull,
        Mistake::ForgetsUnconfirmed,
        Mistake::ServesWithoutPull,
        Mistake::PullOvertakesOperation,
        Mistake::PullsOnce,
        Mistake::MarksAreIgnored,
        Mistake::MarksAreLost,
        Mistake::SessionsEndWithCoordinator,
        Mistake::DecidedOperationBeginsAgain,
        Mistake::AppliesWithoutJoin,
    ] {
        let is_found = (1..=RUNS_WITH_MISTAKE).any(|seed| fails(seed, Some(mistake)));
        assert!(is_found, "{mistake:?}");
    }
}

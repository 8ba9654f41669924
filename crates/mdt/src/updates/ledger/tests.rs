//! The rules of the ledger in a model of three MDTs with crashes. A run takes random steps, then
//! restarts every MDT and lets all operations end. Afterwards each record must be applied exactly
//! once on both of its MDTs, or on neither.

use super::{Batchid, Ledger};

const MDTS: u32 = 3;
const STEPS: usize = 80;
const RUNS: u64 = 3000;

/// A rule that a run violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    ForgetsBeforeSync,
    ForgetsInFlight,
    ForgetsBeforePull,
    ServesWithoutPull,
    PullOvertakesOperation,
    MarksAreIgnored,
    MarksAreLost,
}

/// A change of an MDT's store.
#[derive(Clone, Copy, Debug)]
enum Event {
    Kept(Batchid, u32),
    Forgotten {
        coordinator: u32,
        other: u32,
        number: u64,
    },
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
    is_ready: bool,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
struct Operation {
    batchid: Batchid,
    participant: u32,
    /// The start of the participant in which it has the session.
    session: u64,
    /// Whether the participant has applied its share and said so.
    is_given: bool,
}

#[derive(Debug)]
struct Model {
    nodes: Vec<Node>,
    operations: Vec<Operation>,
    random: u64,
    mistake: Option<Mistake>,
}

impl Node {
    fn append(&mut self, event: Event) {
        self.log.push(event);
    }

    fn keep(&mut self, batchid: Batchid, other: u32) {
        self.append(Event::Kept(batchid, other));
        self.ledger.keep(batchid, other);
    }

    fn forget(&mut self, coordinator: u32, other: u32, number: u64) {
        if self.ledger.forget(coordinator, other, number).is_some() {
            self.append(Event::Forgotten {
                coordinator,
                other,
                number,
            });
        }
    }

    fn crash(&mut self) {
        self.log.truncate(self.durable);
        (self.is_up, self.is_ready) = (false, false);
    }

    fn restart(&mut self, loses_marks: bool) {
        self.start += 1;
        self.is_up = true;
        self.ledger = Ledger::new(self.index, self.start << 32);
        for event in &self.log {
            match *event {
                Event::Kept(batchid, other) => self.ledger.keep(batchid, other),
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
        self.durable = self.log.len();
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
            is_ready: true,
        };
        Model {
            nodes: (0..MDTS).map(node).collect(),
            operations: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            mistake,
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

    /// Two different MDTs.
    fn pair(&mut self) -> (usize, usize) {
        let a = self.below(MDTS as usize);
        let b = (a + 1 + self.below(MDTS as usize - 1)) % MDTS as usize;
        (a, b)
    }

    fn step(&mut self) {
        let (a, b) = self.pair();
        match self.below(16) {
            0..4 if self.nodes[a].is_ready && self.nodes[b].is_ready => self.begin(a, b),
            4..8 if !self.operations.is_empty() => {
                let at = self.below(self.operations.len());
                self.advance(at);
            }
            8..10 => self.nodes[a].durable = self.nodes[a].log.len(),
            10 if self.nodes[a].is_ready && self.may_forget(b) => self.forget(a, b),
            11 if self.nodes[a].is_ready && self.nodes[b].is_up => self.tell(a, b),
            12 if self.nodes[a].is_up => self.crash(a),
            13 | 14 if !self.nodes[a].is_up => self.restart(a),
            15 if self.nodes[a].is_up => self.pull(a),
            _ => {}
        }
    }

    fn begin(&mut self, coordinator: usize, participant: usize) {
        let session = self.nodes[participant].start;
        let batchid = self.nodes[coordinator].ledger.begin(participant as u32);
        self.operations.push(Operation {
            batchid,
            participant: participant as u32,
            session,
            is_given: false,
        });
    }

    /// Takes the next step of an operation.
    fn advance(&mut self, at: usize) {
        let mut operation = self.operations[at];
        let coordinator = operation.batchid.coordinator;
        let participant = &mut self.nodes[operation.participant as usize];
        if operation.is_given {
            let node = &mut self.nodes[coordinator as usize];
            node.keep(operation.batchid, operation.participant);
            node.ledger.end(operation.batchid);
            self.operations.swap_remove(at);
            return;
        }
        if !participant.is_up {
            return;
        }
        if participant.ledger.has(operation.batchid, coordinator) {
            operation.is_given = true;
        } else if participant.start == operation.session {
            participant.keep(operation.batchid, coordinator);
            // The answer may be lost.
            operation.is_given = self.below(4) > 0;
        } else {
            self.nodes[coordinator as usize].ledger.end(operation.batchid);
            self.operations.swap_remove(at);
            return;
        }
        self.operations[at] = operation;
    }

    /// Whether a participant lets the coordinator forget records.
    fn may_forget(&self, participant: usize) -> bool {
        let node = &self.nodes[participant];
        node.is_ready || (node.is_up && self.has_mistake(Mistake::ForgetsBeforePull))
    }

    /// The coordinator forgets what both have synced.
    fn forget(&mut self, coordinator: usize, participant: usize) {
        let settled = match self.has_mistake(Mistake::ForgetsInFlight) {
            true => self.nodes[coordinator].ledger.last,
            false => self.nodes[coordinator].ledger.settled(participant as u32),
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
    }

    fn restart(&mut self, index: usize) {
        let loses_marks = self.has_mistake(Mistake::MarksAreLost);
        self.nodes[index].restart(loses_marks);
        self.nodes[index].is_ready = self.has_mistake(Mistake::ServesWithoutPull);
    }

    /// Gets the records that an MDT lacks, if all others are up.
    fn pull(&mut self, index: usize) {
        if self.nodes[index].is_ready || self.nodes.iter().any(|node| !node.is_up) {
            return;
        }
        for other in (0..MDTS as usize).filter(|other| *other != index) {
            if !self.has_mistake(Mistake::PullOvertakesOperation) {
                self.end_operations(|operation| {
                    let both = [operation.batchid.coordinator, operation.participant];
                    both.contains(&(index as u32)) && both.contains(&(other as u32))
                });
            }
            let naming = self.nodes[other].ledger.naming(index as u32, Batchid::default());
            let offered: Vec<Batchid> = naming.collect();
            for batchid in offered {
                let node = &mut self.nodes[index];
                let has = match self.mistake {
                    Some(Mistake::MarksAreIgnored) => node.ledger.kept.contains_key(&batchid),
                    _ => node.ledger.has(batchid, other as u32),
                };
                if !has {
                    node.keep(batchid, other as u32);
                }
            }
        }
        self.nodes[index].is_ready = true;
    }

    /// Lets operations take steps until they have ended.
    fn end_operations(&mut self, is_chosen: impl Fn(&Operation) -> bool) {
        while let Some(at) = self.operations.iter().position(&is_chosen) {
            self.advance(at);
        }
    }

    /// Restarts all MDTs, and ends all operations. Returns whether the MDTs agree.
    fn end(mut self) -> bool {
        for index in 0..MDTS as usize {
            if !self.nodes[index].is_up {
                self.restart(index);
            }
        }
        for index in 0..MDTS as usize {
            self.pull(index);
        }
        self.end_operations(|_| true);
        let kept = self.nodes.iter().flat_map(|node| &node.log);
        let pairs = kept.filter_map(|event| match event {
            Event::Kept(batchid, _) => Some(*batchid),
            Event::Forgotten { .. } => None,
        });
        let mut batchids: Vec<Batchid> = pairs.collect();
        batchids.dedup();
        batchids.iter().all(|batchid| {
            let times: Vec<usize> = self
                .nodes
                .iter()
                .map(|node| node.times_applied(*batchid))
                .collect();
            times.iter().sum::<usize>() == 2 && times.iter().all(|times| *times <= 1)
        })
    }
}

/// The number of runs after which the MDTs do not agree.
fn failures(mistake: Option<Mistake>) -> usize {
    let fails = |seed: &u64| {
        let mut model = Model::new(*seed, mistake);
        (0..STEPS).for_each(|_| model.step());
        !model.end()
    };
    (1..=RUNS).filter(fails).count()
}

#[test]
fn crashes_leave_each_operation_on_both_mdts_or_on_neither() {
    assert_eq!(failures(None), 0);
}

#[test]
fn the_model_finds_each_mistake() {
    for mistake in [
        Mistake::ForgetsBeforeSync,
        Mistake::ForgetsInFlight,
        Mistake::ForgetsBeforePull,
        Mistake::ServesWithoutPull,
        Mistake::PullOvertakesOperation,
        Mistake::MarksAreIgnored,
        Mistake::MarksAreLost,
    ] {
        assert!(failures(Some(mistake)) > 0, "{mistake:?}");
    }
}

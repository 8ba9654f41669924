//! Tests that the index after a crash has the result of a prefix of its batches.

use std::collections::BTreeMap;

use bytes::Bytes;
use osd::{Batch, Index, KEY_RESERVED};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use wire::Transno;

use crate::{Crash, Node, millis, put, simulate};

type Image = BTreeMap<Bytes, Bytes>;

/// Key of the value that identifies the last batch of an image.
const COUNT: &str = "count";

fn image(index: &dyn Index) -> Image {
    let rows = index.scan(b"", &[KEY_RESERVED], usize::MAX).wait().unwrap();
    rows.into_iter().collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// Applies a batch that changes these keys: true sets, false removes.
    Apply(Vec<(u8, bool)>),
    Sync,
    Wait(u64),
    Crash(Crash),
    /// Closes the index cleanly and opens it again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec((0..12u8, any::<bool>()), 0..4).prop_map(Step::Apply),
        1 => Just(Step::Sync),
        3 => (0..70u64).prop_map(Step::Wait),
        1 => Just(Step::Crash(Crash::PowerCut)),
        1 => Just(Step::Crash(Crash::ProcessKill)),
        1 => Just(Step::Restart),
    ]
}

/// A batch of the current run.
struct Applied {
    at: Instant,
    transno: Transno,
    image: Image,
}

struct Machine {
    /// `None` while it restarts.
    node: Option<Node>,
    /// The first element is the image at the start of the run.
    applied: Vec<Applied>,
    /// Number of batches that a sync covered.
    synced: usize,
    digests: Vec<u64>,
}

impl Machine {
    async fn new(seed: u64) -> Machine {
        let node = Node::new(seed).await;
        Machine {
            applied: vec![Machine::first(&node, Image::new())],
            node: Some(node),
            synced: 0,
            digests: Vec::new(),
        }
    }

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    fn index(&self) -> &dyn Index {
        &*self.node().index
    }

    fn first(node: &Node, image: Image) -> Applied {
        Applied {
            at: Instant::now(),
            transno: node.index.transactions().committed(),
            image,
        }
    }

    fn apply(&mut self, changes: &[(u8, bool)]) {
        let index = self.node().index.clone();
        let transaction = index.transactions().begin();
        let mut image = self.applied.last().unwrap().image.clone();
        let count = Bytes::from(format!("{:?}", transaction.transno()));
        let mut batch = put(COUNT, count.clone());
        batch.transno = Some(transaction.transno());
        image.insert(COUNT.into(), count.clone());
        let changes: BTreeMap<u8, bool> = changes.iter().copied().collect();
        for (key, is_set) in changes {
            let key = Bytes::from(vec![key]);
            if is_set {
                batch.put(key.clone(), count.clone());
                image.insert(key, count.clone());
            } else {
                batch.delete(key.clone());
                image.remove(&key);
            }
        }
        index.apply(batch).unwrap();
        assert!(index.transactions().applied() >= transaction.transno());
        self.applied.push(Applied {
            at: Instant::now(),
            transno: transaction.transno(),
            image,
        });
    }

    /// Checks the image after a start, and continues with it.
    fn check_start(&mut self, node: Node, survivors_min: usize, told: Transno) {
        let found = image(&*node.index);
        let count = found.get(COUNT.as_bytes());
        let same_count = |a: &Applied| a.image.get(COUNT.as_bytes()) == count;
        let survivors = self.applied.iter().position(same_count).expect("a known image");
        assert_eq!(found, self.applied[survivors].image);
        assert!(
            survivors >= survivors_min,
            "{survivors} of {survivors_min} survive"
        );
        let last = self.applied[survivors].transno;
        let committed = node.index.transactions().committed();
        assert!(told <= last, "{told:?} was committed, {last:?} survives");
        assert!(
            told <= committed && committed <= last,
            "{told:?} {committed:?} {last:?}"
        );
        assert!(node.disk.is_idle());
        self.applied = vec![Machine::first(&node, found)];
        self.synced = 0;
        self.node = Some(node);
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Apply(changes) => self.apply(changes),
            Step::Sync => {
                self.index().sync().await.unwrap();
                self.synced = self.applied.len() - 1;
            }
            Step::Wait(ms) => sleep(millis(*ms)).await,
            Step::Crash(crash) => {
                let told = self.index().transactions().committed();
                let in_kernel = |a: &Applied| a.at + millis(1) <= Instant::now();
                let survivors_min = match crash {
                    Crash::PowerCut => self.synced,
                    Crash::ProcessKill => self.applied.iter().filter(|a| in_kernel(a)).count().max(1) - 1,
                };
                let node = self.node.take().unwrap().crash_and_start(*crash).await;
                self.check_start(node, survivors_min.max(self.synced), told);
            }
            Step::Restart => {
                let told = self.index().transactions().committed();
                let node = self.node.take().unwrap();
                let disk = node.disk.clone();
                drop(node);
                assert!(disk.is_idle());
                self.check_start(Node::start(disk).await, self.applied.len() - 1, told);
            }
        }
        assert_eq!(image(self.index()), self.applied.last().unwrap().image);
        self.digests.push(self.node().disk.digest());
    }
}

fn run(seed: u64, steps: &[Step]) -> Vec<u64> {
    simulate(async {
        let mut machine = Machine::new(seed).await;
        for step in steps {
            machine.step(step).await;
        }
        machine.digests
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn crash_keeps_a_prefix_of_the_batches(
        seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let digests = run(seed, &steps);
        prop_assert_eq!(digests, run(seed, &steps), "the same seed gives another result");
    }
}

/// Number of batches that survive a crash, of `count` that were just applied.
async fn survivors(seed: u64, count: u32, crash: Crash, wait_ms: u64) -> u32 {
    let node = Node::new(seed).await;
    for n in 0..count {
        node.index.apply(put(&n.to_string(), "")).unwrap();
    }
    sleep(millis(wait_ms)).await;
    let node = node.crash_and_start(crash).await;
    image(&*node.index).len() as u32
}

#[test]
fn power_cut_loses_all_some_or_no_unsynced_batches() {
    simulate(async {
        let mut found = Vec::new();
        for seed in 0..50 {
            found.push(survivors(seed, 4, Crash::PowerCut, 10).await);
        }
        for count in 0..=4 {
            assert!(found.contains(&count), "{found:?}");
        }
    });
}

#[test]
fn process_kill_loses_only_batches_of_the_last_millisecond() {
    simulate(async {
        let mut found = Vec::new();
        for seed in 0..50 {
            found.push(survivors(seed, 4, Crash::ProcessKill, 0).await);
            assert_eq!(survivors(seed, 4, Crash::ProcessKill, 1).await, 4);
        }
        for count in 0..=4 {
            assert!(found.contains(&count), "{found:?}");
        }
    });
}

#[test]
fn batch_is_durable_after_a_commit_and_not_before() {
    simulate(async {
        let node = Node::new(1).await;
        let transactions = node.index.transactions().clone();
        let transaction = transactions.begin();
        let batch = Batch {
            transno: Some(transaction.transno()),
            ..put("a", "1")
        };
        node.index.apply(batch).unwrap();
        sleep(millis(49)).await;
        assert!(!node.disk.is_idle() && transactions.committed() < transaction.transno());
        transactions
            .watch_committed()
            .wait_for(|committed| *committed >= transaction.transno())
            .await
            .unwrap();
        assert!(node.disk.is_idle());
        // A commit on request does not wait for the interval.
        node.disk.set_delay(millis(5));
        let begun = Instant::now();
        node.index.apply(put("b", "2")).unwrap();
        node.index.sync().await.unwrap();
        let took = begun.elapsed();
        assert!(took >= millis(5) && took < millis(50), "{took:?}");
    });
}

#[test]
fn failed_transaction_is_finished_too() {
    simulate(async {
        let node = Node::new(1).await;
        node.disk.set_capacity(0);
        let transaction = node.index.transactions().begin();
        let batch = Batch {
            transno: Some(transaction.transno()),
            ..put("a", "1")
        };
        node.index.apply(batch).unwrap_err();
        assert_eq!(node.index.transactions().applied(), transaction.transno());
    });
}

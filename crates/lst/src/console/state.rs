//! What a console keeps: nodes and what is known of them, groups, batches and their tests. Pure.

use super::command::{NodeState, TestKind};
use crate::framework::NO_SID;
use tokio::time::Instant;
use wire::{Errno, LST_FEATS_MASK, LstSid, Nid};

/// The batch that is always there.
pub(crate) const DEFAULT_BATCH: &str = "batch";
/// Groups and batches of a session.
const NAMED_MAX: usize = 1024;

/// A console's session.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sid: LstSid,
    /// What its nodes agree on; the first that joins decides.
    pub(crate) feats: u32,
    agreed: bool,
    pub(crate) nodes: Vec<Known>,
    pub(crate) groups: Vec<Group>,
    pub(crate) batches: Vec<Batch>,
    last_batch: u64,
}

/// A node, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) nid: Nid,
    pub(crate) state: NodeState,
    /// After so many seconds without requests it leaves the session.
    pub(crate) timeout_s: u32,
    pub(crate) heard: Instant,
}

/// Nodes under a name.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) nids: Vec<Nid>,
}

/// Tests under a name.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) running: bool,
    pub(crate) tests: Vec<Test>,
    pub(crate) clients: Vec<Nid>,
    pub(crate) servers: Vec<Nid>,
}

/// A test as it was added.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    pub(crate) kind: TestKind,
    pub(crate) loops: i32,
    pub(crate) concurrency: u32,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// How many nodes are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) active: usize,
    pub(crate) busy: usize,
    pub(crate) down: usize,
    pub(crate) unknown: usize,
}

impl State {
    pub(crate) fn new(sid: LstSid, feats: u32) -> State {
        let mut state = State {
            sid,
            feats,
            agreed: false,
            nodes: Vec::new(),
            groups: Vec::new(),
            batches: Vec::new(),
            last_batch: 0,
        };
        // The first name is never taken.
        let _ = state.add_batch(DEFAULT_BATCH);
        state
    }

    /// Whether a node with these features can be in the session.
    pub(crate) fn agree(&mut self, feats: u32) -> bool {
        if feats & !LST_FEATS_MASK != 0 {
            return false;
        }
        if !self.agreed {
            (self.agreed, self.feats) = (true, feats);
        }
        self.feats == feats
    }

    // ---- nodes

    pub(crate) fn state_of(&self, nid: Nid) -> NodeState {
        self.nodes
            .iter()
            .find(|n| n.nid == nid)
            .map_or(NodeState::Unknown, |n| n.state)
    }

    /// A node, now known if it was not.
    pub(crate) fn node(&mut self, now: Instant, nid: Nid) -> &mut Known {
        let at = match self.nodes.iter().position(|n| n.nid == nid) {
            Some(at) => at,
            None => {
                self.nodes.push(Known {
                    nid,
                    state: NodeState::Unknown,
                    timeout_s: 0,
                    heard: now,
                });
                self.nodes.len() - 1
            }
        };
        &mut self.nodes[at]
    }

    /// A node has answered with its session, or has not.
    pub(crate) fn heard(&mut self, now: Instant, nid: Nid, session: Option<LstSid>) -> NodeState {
        let ours = self.sid;
        let node = self.node(now, nid);
        node.state = match session {
            None => NodeState::Down,
            Some(sid) if sid.ses_nid == NO_SID.ses_nid => NodeState::Unknown,
            Some(sid) if sid == ours => NodeState::Active,
            Some(_) => NodeState::Busy,
        };
        if session.is_some() {
            node.heard = now;
        }
        node.state
    }

    pub(crate) fn tally(&self, nids: &[Nid]) -> Tally {
        let mut tally = Tally::default();
        for &nid in nids {
            *match self.state_of(nid) {
                NodeState::Active => &mut tally.active,
                NodeState::Busy => &mut tally.busy,
                NodeState::Down => &mut tally.down,
                NodeState::Unknown => &mut tally.unknown,
            } += 1;
        }
        tally
    }

    /// Forgets nodes that are in no group and no batch any more.
    pub(crate) fn forget_unused(&mut self) {
        let used = |nid: &Nid| {
            self.groups.iter().any(|g| g.nids.contains(nid))
                || self
                    .batches
                    .iter()
                    .any(|b| b.clients.contains(nid) || b.servers.contains(nid))
        };
        let keep: Vec<bool> = self.nodes.iter().map(|n| used(&n.nid)).collect();
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().unwrap_or(true));
    }

    /// Those of `nids` that are active, and in nothing but the group `name`.
    pub(crate) fn only_in(&self, name: &str, nids: &[Nid]) -> Vec<Nid> {
        let elsewhere = |nid: &Nid| {
            self.groups.iter().any(|g| g.name != name && g.nids.contains(nid))
                || self
                    .batches
                    .iter()
                    .any(|b| b.clients.contains(nid) || b.servers.contains(nid))
        };
        let of = |nid: &Nid| self.state_of(*nid) == NodeState::Active && !elsewhere(nid);
        nids.iter().copied().filter(of).collect()
    }

    // ---- groups

    pub(crate) fn group(&self, name: &str) -> Result<&Group, Errno> {
        self.groups.iter().find(|g| g.name == name).ok_or(Errno::ENOENT)
    }

    /// A group that no test uses.
    pub(crate) fn free_group(&mut self, name: &str) -> Result<&mut Group, Errno> {
        let used = |t: &Test| t.from == name || t.to == name;
        let busy = self.batches.iter().any(|b| b.tests.iter().any(used));
        let group = self
            .groups
            .iter_mut()
            .find(|g| g.name == name)
            .ok_or(Errno::ENOENT)?;
        if busy { Err(Errno::EBUSY) } else { Ok(group) }
    }

    pub(crate) fn add_group(&mut self, name: &str) -> Result<(), Errno> {
        if self.group(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        if self.groups.len() >= NAMED_MAX {
            return Err(Errno::ENOMEM);
        }
        self.groups.push(Group {
            name: name.to_owned(),
            nids: Vec::new(),
        });
        Ok(())
    }

    /// Takes nodes out of a group; a group without nodes goes.
    pub(crate) fn remove_from(&mut self, name: &str, gone: impl Fn(Nid) -> bool) {
        for group in self.groups.iter_mut().filter(|g| g.name == name) {
            group.nids.retain(|&nid| !gone(nid));
        }
        self.groups.retain(|g| g.name != name || !g.nids.is_empty());
        self.forget_unused();
    }

    // ---- batches

    pub(crate) fn batch(&self, name: &str) -> Result<&Batch, Errno> {
        self.batches.iter().find(|b| b.name == name).ok_or(Errno::ENOENT)
    }

    pub(crate) fn batch_mut(&mut self, name: &str) -> Result<&mut Batch, Errno> {
        self.batches
            .iter_mut()
            .find(|b| b.name == name)
            .ok_or(Errno::ENOENT)
    }

    pub(crate) fn add_batch(&mut self, name: &str) -> Result<(), Errno> {
        if self.batch(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        if self.batches.len() >= NAMED_MAX {
            return Err(Errno::ENOMEM);
        }
        self.last_batch += 1;
        self.batches.push(Batch {
            name: name.to_owned(),
            id: self.last_batch,
            running: false,
            tests: Vec::new(),
            clients: Vec::new(),
            servers: Vec::new(),
        });
        Ok(())
    }
}

/// The servers of the client with this index, of all in the servers' group: each `dist` clients in a row have the same `span`
/// servers, and the next have the following ones, around the group.
pub(crate) fn servers_of(index: usize, dist: usize, span: usize, group: &[Nid]) -> Result<Vec<Nid>, Errno> {
    if span == 0 || dist == 0 || span > group.len() {
        return Err(Errno::EINVAL);
    }
    let start = (index / dist * span) % group.len();
    Ok(group.iter().cycle().skip(start).take(span).copied().collect())
}

/// Requests that a server of a test may get at once, for which it makes room.
pub(crate) fn requests_at_once(
    clients: usize,
    servers: usize,
    dist: u32,
    span: u32,
    concurrency: u32,
) -> u32 {
    let groups_of_clients = clients.div_ceil(dist.max(1) as usize);
    let groups_of_servers = servers.div_ceil(span.max(1) as usize).max(1);
    let clients_at_most = groups_of_clients.div_ceil(groups_of_servers) as u32;
    clients_at_most.saturating_mul(dist).saturating_mul(concurrency)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::Ipv4Addr;

    fn nids(n: u32) -> Vec<Nid> {
        (1..=n).map(|i| Nid::tcp(Ipv4Addr::from_bits(i), 0)).collect()
    }

    fn distributed(clients: usize, servers: u32, dist: usize, span: usize) -> Vec<Vec<u32>> {
        let servers = nids(servers);
        let of = |i| servers_of(i, dist, span, &servers).unwrap();
        (0..clients)
            .map(|i| of(i).iter().map(|n| n.0 as u32).collect())
            .collect()
    }

    #[test]
    fn clients_are_distributed_over_servers_as_the_ratio_says() {
        assert_eq!(distributed(4, 2, 1, 1), [[1], [2], [1], [2]]);
        assert_eq!(
            distributed(3, 4, 1, 4),
            [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
        );
        assert_eq!(distributed(4, 3, 2, 2), [[1, 2], [1, 2], [3, 1], [3, 1]]);
        assert_eq!(servers_of(0, 1, 3, &nids(2)), Err(Errno::EINVAL));
        assert_eq!(requests_at_once(4, 2, 1, 1, 8), 16);
        assert_eq!(requests_at_once(4, 3, 2, 2, 1), 2);
    }

    #[test]
    fn the_first_node_decides_what_all_must_know() {
        let mut state = State::new(NO_SID, 1);
        assert!(!state.agree(2));
        assert!(state.agree(0) && state.agree(0) && !state.agree(1));
        assert_eq!(state.feats, 0);
    }

    #[test]
    fn a_group_without_nodes_goes_and_its_nodes_are_forgotten() {
        let mut state = State::new(NO_SID, 1);
        let now = Instant::now();
        for name in ["a", "b"] {
            state.add_group(name).unwrap();
        }
        assert_eq!(state.add_group("a"), Err(Errno::EEXIST));
        for (name, n) in [("a", 2), ("b", 1)] {
            state.free_group(name).unwrap().nids = nids(n);
        }
        for nid in nids(2) {
            let sid = state.sid;
            state.node(now, nid).state = NodeState::Active;
            assert_eq!(
                state.heard(now, nid, Some(LstSid { ses_nid: nid, ..sid })),
                NodeState::Busy
            );
        }
        state.remove_from("a", |_| true);
        assert!(state.group("a").is_err());
        assert_eq!(state.nodes.iter().map(|n| n.nid).collect::<Vec<_>>(), nids(1));
    }
}

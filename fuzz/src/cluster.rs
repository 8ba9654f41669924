//! The servers of one file system in memory, and three misbehaving clients: two mounts, and one
//! with the rights of a server. All nodes share the thread, a simulated network and virtual time.
//!
//! The servers live for many inputs. After each input no request, client or lock of the input may
//! remain, and an orderly client must still get replies. The orderly client removes the files of
//! the input. If it cannot remove all, the next input gets new servers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use cpt::{CptTable, NodeScope};
use lnet::sim::{Fabric, Fate, FrameInfo, FrameKind, Weather};
use lnet::{Lnet, LnetConfig};
use mdt::WallClock;
use node::{MGS_WAIT, Node, NodeConfig, RandomSource, TargetSpec};
use osd::target::{TargetKind, TargetLabel};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};
use wire::{Fid, LdlmReply, MdtBody, Nid, Time, striping::PlainLayout};

use crate::client::{Answer, Client, Reply, Role};
use crate::orderly::WellBehavedClient;
use crate::requests::{self, FIDS, Request, ServerHandles};
use crate::steps::{Action, Step, options};

/// UUID of the MDT.
pub const MDT: &str = "testfs-MDT0000_UUID";
/// UUID of the OST.
pub const OST: &str = "testfs-OST0000_UUID";
/// Virtual time in which all requests of an input must end: longer than all timeouts of a server.
const END_MAX: Duration = Duration::from_secs(4000);
/// Number of misbehaving clients.
const CLIENTS: usize = 3;

/// The cluster.
pub struct Cluster {
    runtime: Runtime,
    nodes: Nodes,
    /// Number of locks that the servers themselves hold.
    own_locks: usize,
    /// Whether an input has left files behind.
    is_dirty: bool,
}

struct Nodes {
    fabric: Arc<Fabric>,
    fate: Arc<AtomicU8>,
    node: Arc<Node>,
    clients: Vec<Client>,
    orderly: WellBehavedClient,
    known: Arc<Mutex<ServerHandles>>,
    fids: [Fid; FIDS],
}

/// Every message arrives at once, unless an input has chosen a fate for the next one.
struct ChosenFate(Arc<AtomicU8>);

impl Weather for ChosenFate {
    fn fate(&mut self, frame: &FrameInfo) -> Fate {
        if frame.kind != FrameKind::Put || self.0.load(Relaxed) == 0 {
            return Fate::Deliver(Duration::ZERO);
        }
        match self.0.swap(0, Relaxed) % 6 {
            1 => Fate::Lose,
            2 => Fate::Duplicate(Duration::ZERO, Duration::from_millis(5)),
            3 => Fate::Break(Duration::ZERO),
            4 => Fate::Reorder(Duration::from_secs(2)),
            _ => Fate::Duplicate(Duration::ZERO, Duration::from_secs(300)),
        }
    }

    fn arrived(&mut self, _: &FrameInfo) {}
}

/// The NID of a host; host 0 runs the servers.
fn nid(host: usize) -> Nid {
    Nid::tcp(Ipv4Addr::new(192, 0, 2, host as u8 + 1), 0)
}

impl Cluster {
    /// Starts the servers and the clients.
    pub fn start() -> Cluster {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("a runtime");
        let nodes = runtime.block_on(Nodes::start());
        let own_locks = nodes.locks();
        Cluster {
            runtime,
            nodes,
            own_locks,
            is_dirty: false,
        }
    }

    /// Plays an input.
    ///
    /// # Panics
    ///
    /// The servers violate an invariant.
    pub fn play(&mut self, steps: &[Step]) {
        let Cluster {
            runtime,
            nodes,
            own_locks,
            is_dirty,
        } = self;
        runtime.block_on(async {
            nodes.begin().await;
            for step in steps {
                nodes.play(step).await;
            }
            nodes.finish(*own_locks).await;
            *is_dirty = !nodes.orderly.clean_up().await;
        });
    }

    /// The FIDs that steps name.
    pub fn fids(&self) -> [Fid; FIDS] {
        self.nodes.fids
    }

    /// Whether the next input needs a new cluster.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }
}

impl Nodes {
    async fn start() -> Nodes {
        let fate = Arc::<AtomicU8>::default();
        let fabric = Fabric::new(Box::new(ChosenFate(fate.clone())));
        tokio::spawn(fabric.clone().run());
        let node = NodeScope::new(0).run(start_servers(fabric.clone())).await;
        let known = Arc::<Mutex<ServerHandles>>::default();
        let mut all = Vec::new();
        let uuids = ["a", "b", "server", "orderly"];
        for (i, uuid) in uuids.into_iter().enumerate() {
            let lnet = open_network(fabric.clone(), nid(1 + i)).await;
            let role = if uuid == "server" {
                Role::Server
            } else {
                Role::Mount
            };
            all.push(Client::new(uuid, role, lnet, nid(0), known.clone()));
        }
        let client = all.pop().expect("the last client");
        let (orderly, [own, a, b]) = WellBehavedClient::start(client).await;
        let mut fids = [Fid::ZERO; FIDS];
        fids[0] = Fid::new(own, 1, 0);
        (1..=6).for_each(|i| fids[i] = Fid::new(a, i as u32, 0));
        (7..=11).for_each(|i| fids[i] = Fid::new(b, i as u32, 0));
        fids[12] = Fid::ROOT;
        fids[13] = Fid::DOT_LUSTRE;
        fids[14] = Fid::new(a, 1, 1);
        Nodes {
            fabric,
            fate,
            node,
            clients: all,
            orderly,
            known,
            fids,
        }
    }

    /// Number of locks at all targets, granted and waiting.
    fn locks(&self) -> usize {
        let of_mdts = self
            .node
            .mdts()
            .iter()
            .map(|mdt| mdt.lock_stats().locks)
            .sum::<usize>();
        of_mdts
            + self
                .node
                .osts()
                .iter()
                .map(|ost| ost.lock_stats().locks)
                .sum::<usize>()
    }

    async fn begin(&mut self) {
        *self.known.lock() = ServerHandles {
            fids: self.fids,
            ..ServerHandles::default()
        };
        self.orderly.make_dir(self.fids[0]).await;
    }

    async fn play(&mut self, step: &Step) {
        let number = usize::from(step.options & options::CLIENT) % CLIENTS;
        let client = &mut self.clients[number];
        let to_ost = step.x & 1 != 0;
        let xid = match step.action {
            Action::Disconnect => {
                client.disconnect(to_ost).await;
                None
            }
            Action::Connect => {
                client.connect(to_ost, step.y & 1 == 0).await;
                None
            }
            Action::Wait => {
                sleep(Duration::from_millis(1 << (step.x % 18))).await;
                None
            }
            Action::Answer => {
                client.set_answer(Answer::from_number(step.x));
                None
            }
            Action::Network => {
                self.fate.store(step.x, Relaxed);
                None
            }
            Action::Resend => {
                let resent = if step.y & 1 == 0 { wire::MSG_RESENT } else { 0 };
                let replayed = if step.y & 2 == 0 { 0 } else { wire::MSG_REPLAY };
                client.resend(step.x.into(), resent | replayed).await
            }
            Action::Raw => {
                let to_ost = step.b & 1 != 0;
                connect(client, to_ost).await;
                let keep_body = step.options & options::KEEP_BODY != 0;
                client
                    .send_raw(to_ost, step.a.into(), &step.message, keep_body)
                    .await
            }
            _ => {
                let request = requests::build(step, &self.known.lock());
                match request {
                    Some(request) => send(client, step, &request).await,
                    None => None,
                }
            }
        };
        if let Some(xid) = xid
            && step.options & options::NO_WAIT == 0
            && let Some(reply) = client.reply(xid).await
        {
            learn(&self.known, &reply);
        }
        for client in &mut self.clients {
            client
                .late_replies()
                .iter()
                .for_each(|reply| learn(&self.known, reply));
        }
    }

    /// Ends an input: all requests must end, and nothing may remain of the clients.
    async fn finish(&mut self, own_locks: usize) {
        self.fate.store(0, Relaxed);
        self.clients
            .iter()
            .for_each(|client| client.set_answer(Answer::Cancel));
        self.wait_until_idle("before the clients disconnect").await;
        self.check_locks();
        for client in &mut self.clients {
            for to_ost in [false, true] {
                if client.is_connected(to_ost) {
                    client.disconnect(to_ost).await;
                }
            }
        }
        // The reply to a connect may be lost, so the servers may have connections that the clients
        // do not know.
        for (target, uuid) in self.connections() {
            let client = self.clients.iter_mut().find(|client| client.uuid() == uuid);
            let client = client.expect("one of the clients");
            client.connect(target == OST, true).await;
            client.disconnect(target == OST).await;
        }
        self.wait_until_idle("after the clients have disconnected").await;
        let left = self.connections();
        assert!(
            left.is_empty(),
            "exports remain after all clients disconnected: {left:?}"
        );
        let locks = self.locks();
        assert_eq!(locks, own_locks, "locks remain after all clients disconnected");
        self.clients.iter_mut().for_each(Client::forget);
    }

    /// The connections of the misbehaving clients: target and client.
    fn connections(&self) -> Vec<(String, String)> {
        let is_theirs = |uuid: &str| self.clients.iter().any(|client| client.uuid() == uuid);
        let all = self.node.rpc().clients().into_iter();
        all.filter(|(_, uuid, _)| is_theirs(uuid))
            .map(|(target, uuid, _)| (target, uuid))
            .collect()
    }

    /// Waits until the servers execute no request.
    async fn wait_until_idle(&mut self, when: &str) {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            // Virtual time advances only when no task can run.
            sleep(pause).await;
            let stats = self.node.rpc().stats();
            let active: Vec<_> = stats.iter().filter(|s| s.active > 0 || s.queued > 0).collect();
            if active.is_empty() && self.fabric.pending_frames() == 0 {
                return;
            }
            let clients = self.node.rpc().clients();
            assert!(
                began.elapsed() < END_MAX,
                "requests are active for ever {when}: {active:?}, {clients:?}"
            );
            pause = (pause * 2).min(Duration::from_secs(10));
        }
    }

    /// No two clients may hold conflicting locks.
    fn check_locks(&self) {
        for mdt in self.node.mdts() {
            assert_eq!(mdt.granted_conflicts(), [""; 0], "conflicting locks of the MDT");
        }
        for ost in self.node.osts() {
            assert_eq!(ost.granted_conflicts(), [""; 0], "conflicting locks of the OST");
            assert!(ost.grants_are_consistent(), "the sum of the grants is wrong");
        }
    }
}

/// Starts an MGS, an MDT and an OST, ready to create files.
async fn start_servers(fabric: Arc<Fabric>) -> Arc<Node> {
    let lnet = open_network(fabric, nid(0)).await;
    let config = NodeConfig {
        clock: WallClock::new(|| Time {
            sec: 1_767_225_600,
            ns: 0,
        }),
        ..NodeConfig::new(RandomSource::seeded(7))
    };
    let node = Node::start(lnet, config).expect("the node starts");
    let target = |kind| {
        let mut label = TargetLabel::new(kind, "testfs", 0, &format!("{kind}"));
        if kind == TargetKind::Mdt {
            // The third client may claim to be a server.
            label.service_nodes = vec![nid(0), nid(CLIENTS)];
        }
        TargetSpec::in_memory(label, 1 << 30)
    };
    let targets = [TargetKind::Mgs, TargetKind::Mdt, TargetKind::Ost].map(target);
    let served = node.serve(targets.into(), MGS_WAIT).await;
    served.expect("the targets start");
    let ready = node.wait_until_ready().await;
    ready.expect("the OST is ready for new files");
    node
}

async fn open_network(fabric: Arc<Fabric>, nid: Nid) -> Arc<Lnet> {
    let lnet = Lnet::simulated(CptTable::single_current(), LnetConfig::default(), fabric, 1);
    lnet.add_tcp(nid, true).await.expect("the network opens");
    lnet
}

/// Connects a client to a target, unless it is connected.
async fn connect(client: &mut Client, to_ost: bool) {
    if !client.is_connected(to_ost) {
        client.connect(to_ost, true).await;
    }
}

/// Sends the request of a step. Returns its xid.
async fn send(client: &mut Client, step: &Step, request: &Request) -> Option<u64> {
    connect(client, request.to_ost).await;
    let mut body = client.body(request);
    let is_set = |option| step.options & option != 0;
    if is_set(options::RESENT) {
        body.pb_flags |= wire::MSG_RESENT;
    }
    if is_set(options::REPLAY) {
        body.pb_flags |= wire::MSG_REPLAY;
    }
    body.pb_tag = is_set(options::TAG).into();
    if is_set(options::SHORT_TIMEOUT) {
        body.pb_timeout = 3;
    }
    client.send(request, body).await
}

/// Records the handles and objects in a reply, for later steps.
fn learn(known: &Mutex<ServerHandles>, reply: &Reply) {
    let message = &reply.message;
    let mut known = known.lock();
    if let Some(slot) = reply.lock
        && let Ok(lock) = message.get::<LdlmReply>(1)
        && let Some(handle) = known.locks.get_mut(slot)
    {
        *handle = lock.lock_handle.cookie;
        if let Ok(opened) = message.get::<MdtBody>(2)
            && opened.mbo_open_handle.cookie != 0
        {
            known.opens.push(opened.mbo_open_handle);
        }
        if let Ok(layout) = PlainLayout::parse(message.buf(3)) {
            known
                .objects
                .extend(layout.objects.iter().map(|object| object.l_ost_oi));
        }
    }
}

//! Thousands of damaged requests of a client without permissions. Each is a captured request of a
//! kernel client, with FIDs of files of this file system. The test changes bytes, truncates,
//! extends, removes or exchanges buffers, or replaces the opcode. It sends some requests as
//! complete messages with arbitrary changes, and leaves some unchanged. The work of another client
//! must continue, and the attacker must not keep any lock or open file after its disconnect.
//!
//! `NACRE_STORM_MESSAGES=N` sets the number of requests, `NACRE_STORM_SEED=S` the seed. A seed
//! determines the requests, but not their timing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use capture::trace::MessageKind;
use cpt::CptTable;
use fastrand::Rng;
use rpc::{Import, ImportConfig, ImportKind, Ptlrpc, Request, RpcConfig, RpcError};
use testbase::rpc_node;
use tokio::task::JoinSet;
use wire::{
    Fid, MDS_FMODE_WRITE, MDS_OPEN_CREAT, Message, Nid, OBD_CONNECT_AT, OBD_CONNECT_BRW_SIZE,
    OBD_CONNECT_FULL20, ObdConnectData, WireStruct,
};

use crate::fixture::{nacre_ok, sh};
use crate::hostile::attacked_fs::{AttackedFs, MDT, OST};
use testbase::by_hand::body;
use testbase::captured::{labels, steps};
use testbase::mds_client::Client;
use testbase::sockets::{nid_maker, node};

/// Default number of requests.
const MESSAGES: usize = 6000;
/// Number of concurrent requests.
const TASKS: usize = 12;
/// Time limit for an answer: a request may wait for the lock of another request.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Number of requests between checks of the working client.
const CHECK_INTERVAL: usize = 2000;
/// The user to which the server squashes the attacker.
const SQUASH_USER: &str = "4711:4712";

/// A captured request.
struct CapturedRequest {
    opc: u32,
    version: u32,
    portal: u32,
    bufs: Vec<Bytes>,
}

/// All requests of captured clients, except connects and disconnects.
fn captured_requests() -> Vec<CapturedRequest> {
    let mut all = Vec::new();
    for label in labels() {
        for step in steps(&label) {
            let MessageKind::Request(request) = step.kind else {
                continue;
            };
            let opc = request.body.pb_opc;
            let excluded = [
                wire::MDS_CONNECT,
                wire::MDS_DISCONNECT,
                wire::OST_CONNECT,
                wire::OST_DISCONNECT,
                wire::MGS_CONNECT,
                wire::MGS_DISCONNECT,
            ];
            if request.portal != wire::LDLM_CB_REQUEST_PORTAL && !excluded.contains(&opc) {
                all.push(CapturedRequest {
                    opc,
                    version: request.body.pb_version,
                    portal: request.portal,
                    bufs: request.msg.bufs[1..].to_vec(),
                });
            }
        }
    }
    assert!(all.len() > 500, "{}", all.len());
    all
}

/// Replaces the FIDs in a buffer.
fn replace_fids(buf: &Bytes, fids: &[Fid], random: &mut Rng) -> Vec<u8> {
    let mut bytes = buf.to_vec();
    for at in (0..bytes.len().saturating_sub(15)).step_by(8) {
        let seq = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        if (0x2_0000_0007..0x3_0000_0000).contains(&seq) {
            let fid = random.choice(fids).unwrap();
            bytes[at..at + 16].copy_from_slice(&fid.to_bytes());
        }
    }
    bytes
}

/// Changes some bytes: flips a bit, sets a random value, or sets a word to a boundary value.
fn damage_bytes(bytes: &mut [u8], random: &mut Rng) {
    for _ in 0..random.usize(1..4) {
        let Some(at) = (!bytes.is_empty()).then(|| random.usize(..bytes.len())) else {
            return;
        };
        match random.u8(..3) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            _ => {
                let edge = *random
                    .choice(&[0, 1, u32::MAX, i32::MAX as u32, 1 << 20])
                    .unwrap();
                for (byte, new) in bytes[at & !3..].iter_mut().zip(edge.to_le_bytes()) {
                    *byte = new;
                }
            }
        }
    }
}

/// The buffers of a request after random damage.
fn damaged_buffers(request: &CapturedRequest, fids: &[Fid], random: &mut Rng) -> Vec<Bytes> {
    let mut bufs: Vec<Vec<u8>> = request
        .bufs
        .iter()
        .map(|b| replace_fids(b, fids, random))
        .collect();
    let Some(index) = (!bufs.is_empty()).then(|| random.usize(..bufs.len())) else {
        return Vec::new();
    };
    match random.u8(..10) {
        // Unchanged.
        0 | 1 => {}
        2 => {
            let len = random.usize(..=bufs[index].len());
            bufs[index].truncate(len);
        }
        3 => {
            let more = random.usize(..5000);
            bufs[index].extend(std::iter::repeat_with(|| random.u8(..)).take(more));
        }
        4 => bufs.truncate(index),
        5 => {
            let other = random.usize(..bufs.len());
            bufs.swap(index, other);
        }
        _ => damage_bytes(&mut bufs[index], random),
    }
    bufs.into_iter().map(Bytes::from).collect()
}

/// The attacker's connections: several to the MDT, and one to the first OST.
struct Attacker {
    rpc: Arc<Ptlrpc>,
    to: Nid,
    clients: Vec<Arc<Client>>,
    ost: Arc<Import>,
    fids: Vec<Fid>,
    requests: Vec<CapturedRequest>,
    answered: AtomicUsize,
}

impl Attacker {
    async fn connect(attacked: &AttackedFs, rpc: Arc<Ptlrpc>) -> Attacker {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Client::connect_to(&rpc, attacked.nid, MDT).await);
        }
        let flags = OBD_CONNECT_FULL20 | OBD_CONNECT_AT | OBD_CONNECT_BRW_SIZE;
        let config = ImportConfig {
            nids: vec![attacked.nid],
            connect: ObdConnectData {
                ocd_connect_flags: flags,
                ocd_brw_size: 1 << 20,
                ..ObdConnectData::default()
            },
            max_rpcs_in_flight: 64,
            ..rpc_node::import_config(OST, ImportKind::Osc, Arc::<rpc_node::RecordingOwner>::default())
        };
        let ost = Import::new(&rpc, config);
        ost.connect().await.unwrap();
        // Targets of the attack: nested directories and files, and unused FIDs.
        let client = &clients[0];
        let top = client.getattr(Fid::ROOT, "playground").await.fid();
        let (a, b) = (client.mkdir(top, "a").await, client.mkdir(top, "b").await);
        let c = client.mkdir(a, "c").await;
        let mut fids = vec![Fid::ROOT, Fid::ZERO, top, a, b, c];
        for (dir, name) in [(top, "f"), (a, "g"), (c, "h")] {
            let open = client.open(dir, name, MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
            let _ = client.close(open.fid(), open.handle()).await;
            fids.push(open.fid());
        }
        fids.extend([0; 4].map(|_| client.new_fid()));
        // Objects of the first OST have FIDs, too.
        fids.extend((2..6).map(|oid| Fid::new(0x2_0000_0400, oid, 0)));
        Attacker {
            to: attacked.nid,
            rpc,
            clients,
            ost,
            fids,
            requests: captured_requests(),
            answered: AtomicUsize::new(0),
        }
    }

    /// Sends one request: through an import, or as the bytes of a damaged message.
    async fn send(&self, random: &mut Rng) {
        let request = random.choice(&self.requests).unwrap();
        let bufs = damaged_buffers(request, &self.fids, random);
        let to_ost = request.portal == wire::OST_REQUEST_PORTAL || request.portal == wire::OST_IO_PORTAL;
        let import = match to_ost || random.u8(..20) == 0 {
            true => &self.ost,
            false => &random.choice(&self.clients).unwrap().import,
        };
        let opc = match random.u8(..20) {
            0 => random.choice(&self.requests).unwrap().opc,
            _ => request.opc,
        };
        if random.u8(..4) == 0 {
            let handle = import.server_handle();
            let mut bytes = Message::new(&body(opc, request.version & !0xff, handle), bufs)
                .build()
                .to_vec();
            damage_bytes(&mut bytes, random);
            let xid = random.u64(1 << 60..);
            let portal = request.portal;
            let put = self
                .rpc
                .lnet()
                .put(self.to, portal, xid, 0, 0, bytes.into(), false);
            // The connection may be lost at this moment.
            let _ = tokio::time::timeout(ANSWER_MAX, put).await;
            return;
        }
        let request = Request {
            no_resend: true,
            limited: false,
            timeout: Some(ANSWER_MAX),
            ..Request::new(opc, bufs)
        };
        let answer = tokio::time::timeout(2 * ANSWER_MAX, import.call(request)).await;
        if matches!(answer, Ok(Ok(_) | Err(RpcError::Status(_)))) {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_requests_of_an_unprivileged_client_are_harmless() {
    let messages = env_number("NACRE_STORM_MESSAGES", MESSAGES as u64) as usize;
    let seed = env_number("NACRE_STORM_SEED", 1);
    let attacked = AttackedFs::new();
    // The MDT squashes the attacker's requests to a user without permissions. The attacker connects
    // only to the first OST, so the working client's objects are on the second.
    for param in [
        format!("nosquash_nids={}", attacked.worker),
        format!("root_squash={SQUASH_USER}"),
    ] {
        nacre_ok(&[
            "lctl",
            "--dir",
            &attacked.dir(),
            "set_param",
            &format!("mdt.*.{param}"),
        ]);
    }
    let (work, playground) = (attacked.mount.join("work"), attacked.mount.join("playground"));
    nacre_ok(&["lfs", "setstripe", "-c", "1", "-i", "1", work.to_str().unwrap()]);
    sh(&format!("mkdir -m 1777 {}", playground.display()));
    attacked.check_progress("new files are on the second OST");
    let nid = nid_maker()(9, 0);
    let rpc = Ptlrpc::start(node(nid).await, CptTable::single_current(), RpcConfig::default());
    let attacker = Arc::new(Attacker::connect(&attacked, rpc.clone()).await);
    let mut sent = 0;
    while sent < messages {
        let part = CHECK_INTERVAL.min(messages - sent);
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let attacker = attacker.clone();
            let task_seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (sent * TASKS + task) as u64;
            tasks.spawn(async move {
                let mut random = Rng::with_seed(task_seed);
                for _ in 0..part.div_ceil(TASKS) {
                    attacker.send(&mut random).await;
                }
            });
        }
        tasks.join_all().await;
        sent += part;
        attacked.check_progress(&format!("{sent} messages of seed {seed}"));
    }
    let answered = attacker.answered.load(Ordering::Relaxed);
    eprintln!("{answered} of {messages} were answered");
    assert!(answered > messages / 20);
    // The server must release all locks and open files of the disconnected attacker.
    for client in &attacker.clients {
        client.disconnect().await;
    }
    attacker.ost.disconnect().await;
    sh(&format!(
        "timeout 120 bash -c 'ls -lR {0} > /dev/null; rm -rf {0}'; test ! -e {0}",
        playground.display()
    ));
    attacked.check_progress("the attacker has disconnected");
    attacked.end();
}

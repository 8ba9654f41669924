//! The well-behaved client: it makes the directory of an input, removes the files that the input
//! left, and must always get its replies.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use wire::dirpage::DirPage;
use wire::{
    Errno, Fid, LuSeqRange, MdtBody, MdtRecCreate, MdtRecUnlink, Message, SEQ_ALLOC_META, WireStruct,
    nul_terminated,
};

use crate::client::Client;
use crate::requests::Request;

/// Name of an input's directory.
const DIR: &[u8] = b"input";
/// Type of a directory in `st_mode`.
const S_IFDIR: u32 = 0o040000;
/// Time in which the MDT has the objects of removed files destroyed.
const DESTROY_TIME: Duration = Duration::from_millis(100);
/// Maximum depth of the directories that are removed.
const DEPTH_MAX: u32 = 20;

/// The client.
pub struct WellBehavedClient(Client);

/// An entry of a directory.
struct Entry {
    fid: Fid,
    name: Bytes,
    is_dir: bool,
}

impl WellBehavedClient {
    /// Connects the client. Also returns three sequences for FIDs: the client's own, and two
    /// without an owner.
    pub async fn start(client: Client) -> (WellBehavedClient, [u64; 3]) {
        let mut orderly = WellBehavedClient(client);
        orderly.connect().await;
        let mut sequences = [0; 3];
        for sequence in &mut sequences {
            *sequence = orderly.take_sequence().await;
        }
        for to_ost in [false, true] {
            assert_eq!(orderly.0.disconnect(to_ost).await, Some(0));
        }
        orderly.connect().await;
        (orderly, sequences)
    }

    async fn connect(&mut self) {
        for to_ost in [false, true] {
            assert_eq!(
                self.0.connect(to_ost, true).await,
                Some(0),
                "the orderly client connects"
            );
        }
    }

    async fn take_sequence(&mut self) -> u64 {
        let operation = Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes());
        let bufs = vec![operation, LuSeqRange::default().to_bytes()];
        let reply = self.ask(wire::SEQ_METADATA_PORTAL, wire::SEQ_QUERY, bufs).await;
        reply.get::<LuSeqRange>(1).expect("a sequence").lsr_start
    }

    /// Sends a request. Returns the reply. The client sends no pings, so a server evicts it during
    /// an input that takes minutes; the client then connects again.
    async fn ask(&mut self, portal: u32, opc: u32, bufs: Vec<Bytes>) -> Message {
        let to_ost = opc == wire::OST_STATFS;
        let request = Request {
            to_ost,
            portal,
            opc,
            bufs,
        };
        let reply = self.ask_once(&request).await;
        if reply.body().map(|body| body.pb_status) != Ok(Errno::ENOTCONN.status()) {
            return reply;
        }
        assert_eq!(
            self.0.connect(to_ost, true).await,
            Some(0),
            "the orderly client connects again"
        );
        self.ask_once(&request).await
    }

    async fn ask_once(&mut self, request: &Request) -> Message {
        let body = self.0.body(request);
        let xid = self
            .0
            .send(request, body)
            .await
            .expect("the orderly client can send");
        let reply = self.0.reply(xid).await;
        reply.expect("the orderly client gets a reply").message
    }

    async fn change(&mut self, record: Bytes, name: &[u8]) -> i32 {
        let bufs = vec![record, Bytes::new(), nul_terminated(name), Bytes::new()];
        let reply = self.ask(wire::MDS_REQUEST_PORTAL, wire::MDS_REINT, bufs).await;
        reply.body().expect("a body").pb_status
    }

    /// Makes the directory of an input.
    pub async fn make_dir(&mut self, fid: Fid) {
        let record = MdtRecCreate {
            cr_opcode: wire::REINT_CREATE,
            cr_cap: u32::MAX,
            cr_fid1: Fid::ROOT,
            cr_fid2: fid,
            cr_time: 1000,
            cr_mode: S_IFDIR | 0o777,
            ..MdtRecCreate::default()
        };
        let status = self.change(record.to_bytes(), DIR).await;
        assert_eq!(status, 0, "the orderly client creates a directory");
    }

    /// Removes all files. Returns whether none remains. The servers must answer.
    pub async fn clean_up(&mut self) -> bool {
        let mut removed = 0;
        let is_clean = Box::pin(self.empty(Fid::ROOT, DEPTH_MAX, &mut removed)).await;
        if removed > 1 {
            // There were files besides the input's directory. The MDT destroys their objects in the
            // background.
            let space = self
                .ask(wire::OST_REQUEST_PORTAL, wire::OST_STATFS, Vec::new())
                .await;
            assert_eq!(space.body().map(|b| b.pb_status), Ok(0), "the OST answers");
            sleep(DESTROY_TIME).await;
        }
        self.0.forget_requests();
        is_clean
    }

    /// Removes the entries of a directory. Returns whether all could be removed.
    /// Counts those that are removed.
    async fn empty(&mut self, dir: Fid, depth: u32, removed: &mut usize) -> bool {
        let mut is_clean = depth > 0;
        for entry in self.entries(dir).await {
            let is_removed = self.remove(dir, &entry).await || {
                let goes_down = entry.is_dir && depth > 0;
                goes_down
                    && Box::pin(self.empty(entry.fid, depth - 1, removed)).await
                    && self.remove(dir, &entry).await
            };
            is_clean &= is_removed;
            *removed += usize::from(is_removed);
        }
        is_clean
    }

    async fn remove(&mut self, dir: Fid, entry: &Entry) -> bool {
        let record = MdtRecUnlink {
            ul_opcode: wire::REINT_UNLINK,
            ul_cap: u32::MAX,
            ul_fid1: dir,
            ul_fid2: entry.fid,
            ul_mode: if entry.is_dir { S_IFDIR } else { 0 },
            ..MdtRecUnlink::default()
        };
        self.change(record.to_bytes(), &entry.name).await == 0
    }

    /// The entries of a directory, as far as one reply has them.
    async fn entries(&mut self, dir: Fid) -> Vec<Entry> {
        let pages = MdtBody {
            mbo_fid1: dir,
            mbo_capability: u32::MAX,
            mbo_nlink: 1 << 16,
            ..MdtBody::default()
        };
        let bufs = vec![pages.to_bytes(), Bytes::new()];
        self.ask(wire::MDS_READPAGE_PORTAL, wire::MDS_READPAGE, bufs)
            .await;
        let Some(data) = self.0.pages().await else {
            return Vec::new();
        };
        let pages = DirPage::parse_all(&data).expect("the pages of a directory");
        let entries = pages.into_iter().flat_map(|page| page.entries);
        let others = entries.filter(|entry| !matches!(&entry.name[..], b"." | b".."));
        others
            .map(|entry| Entry {
                fid: entry.fid,
                is_dir: entry
                    .mode
                    .is_some_and(|mode| u32::from(mode) & 0o170000 == S_IFDIR),
                name: entry.name,
            })
            .collect()
    }
}

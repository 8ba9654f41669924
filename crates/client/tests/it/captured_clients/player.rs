//! Plays captures: sends each client's messages in order, waits for the servers' messages where
//! they were captured, and compares them.

use crate::captured_clients::allocation::ExtraFiles;
use crate::captured_clients::compare::{Comparer, MessageId};
use crate::captured_clients::ids::{Kind, UnknownId, bytes_of, kind};
use crate::captured_clients::node::{BulkBuffer, Callback, Node};
use crate::captured_clients::release::ClientRelease;
use crate::captured_clients::servers::{FSNAME, Servers, WAIT_MAX, captured_nid, local_nid};
use bytes::Bytes;
use capture::trace::{MessageKind, Request};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use testbase::captured::differences::Table;
use testbase::captured::{Step, fields, name_of, steps};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use wire::batch::BatchBody;
use wire::format::{Leaf, Rmf, Value, leaves_of_batch};
use wire::{Fid, LDLM_ENQUEUE, LdlmRequest, LustreHandle, Message, Nid, PtlrpcBody, WireStruct};

/// The captured bulk of a request.
#[derive(Default)]
struct Bulk {
    /// The portal and the match bits of each of the server's fetches.
    fetches: Vec<(u32, u64)>,
    /// The data of each fetch.
    fetched: Vec<Bytes>,
    /// Each of the server's puts: portal, match bits and data.
    put: Vec<(u32, u64, Bytes)>,
}

/// A captured callback that this run's servers must send too.
struct ExpectedCallback {
    request: Arc<Request>,
    answer: Option<Message>,
    /// The client's handle of the lock.
    lock_handle: u64,
    /// Whether the servers of this run have sent it.
    arrived: bool,
}

pub(crate) struct Player {
    release: ClientRelease,
    servers: Servers,
    extra_files: ExtraFiles,
    clients: BTreeMap<Nid, Node>,
    callbacks: mpsc::UnboundedReceiver<Callback>,
    comparer: Comparer,
    not_played: Table,
    /// Identifiers that are unknown because an exchange was not played, each with the reason.
    missing: HashMap<String, String>,
    /// Requests that were not played, with the reason.
    skipped: HashMap<(Nid, u64), String>,
    /// The callbacks of the current capture.
    expected_callbacks: Vec<ExpectedCallback>,
    /// The server's handle of each connection, by the client's handle.
    exports: HashMap<u64, u64>,
    /// The last connect of each client to each target.
    connects: HashMap<(Nid, String), Arc<Request>>,
    /// The next XID for requests that were not captured; captured XIDs are multiples of 128.
    next_xid: HashMap<Nid, u64>,
}

fn is_client(nid: Nid) -> bool {
    nid == captured_nid(21) || nid == captured_nid(22)
}

impl Player {
    pub(crate) async fn start(release: ClientRelease) -> Player {
        let servers = Servers::start().await;
        let extra_files = ExtraFiles::start(&servers).await;
        let (sender, callbacks) = mpsc::unbounded_channel();
        let mut clients = BTreeMap::new();
        for nid in [21, 22].map(captured_nid) {
            clients.insert(nid, Node::start(nid, sender.clone()).await);
        }
        Player {
            release,
            servers,
            extra_files,
            clients,
            callbacks,
            comparer: Comparer::new(include_str!("differences.txt")),
            not_played: Table::parse(include_str!("not_played.txt")),
            missing: HashMap::new(),
            skipped: HashMap::new(),
            expected_callbacks: Vec::new(),
            exports: HashMap::new(),
            connects: HashMap::new(),
            next_xid: HashMap::new(),
        }
    }

    pub(crate) async fn play(&mut self, label: &str) {
        self.comparer.tally(label);
        let steps = steps(label);
        let mut bulks: HashMap<(Nid, u64), Bulk> = HashMap::new();
        for step in &steps {
            if let MessageKind::Bulk(Some(req), data) = &step.kind {
                let bulk = bulks.entry((req.client, req.xid)).or_default();
                match (step.portal, data.is_empty()) {
                    (Some(portal), true) => bulk.fetches.push((portal, step.match_bits)),
                    (Some(portal), false) => bulk.put.push((portal, step.match_bits, data.clone())),
                    (None, _) => bulk.fetched.push(data.clone()),
                }
            }
        }
        self.expected_callbacks = expected_callbacks(&steps);
        let osts_of_created_files = osts_of_created_files(&steps);
        for step in steps.iter().filter(|s| is_client(s.from) || is_client(s.to)) {
            self.servers.set_time(step.time_us);
            match &step.kind {
                MessageKind::Request(req) if is_client(step.from) => {
                    let bulk = bulks.remove(&(req.client, req.xid)).unwrap_or_default();
                    if let Some(ost) = osts_of_created_files.get(&(req.client, req.xid)) {
                        self.extra_files.advance_to(&self.servers, *ost).await;
                    }
                    self.send_request(label, step, req, &bulk).await;
                    bulks.insert((req.client, req.xid), bulk);
                }
                MessageKind::Request(req) => self.compare_callback(label, req).await,
                MessageKind::Reply {
                    request: Some(req),
                    early: false,
                    msg,
                    ..
                } if is_client(step.to) => {
                    let bulk = bulks.remove(&(req.client, req.xid)).unwrap_or_default();
                    self.compare_reply(label, req, msg, bulk).await;
                }
                _ => {}
            }
        }
    }

    async fn send_request(&mut self, label: &str, step: &Step, req: &Arc<Request>, bulk: &Bulk) {
        let name = name_of(req);
        self.ensure_connected(label, req).await;
        let (mut msg, fetched) = match self.rewrite_request(req, bulk) {
            Ok(rewritten) => rewritten,
            Err(UnknownId(what)) => {
                let why = self.missing.get(&what).cloned().unwrap_or(what);
                self.comparer.tally(label).not_played += 1;
                if !self.not_played.explains(label, &name, &why.replace(' ', "_")) {
                    self.comparer
                        .unexplained
                        .push(format!("{label} {name} is not played: {why}"));
                }
                self.skipped.insert((req.client, req.xid), why);
                return;
            }
        };
        let fetches = bulk.fetches.iter().zip(&fetched);
        let fetches = fetches.map(|(&(portal, match_bits), data)| BulkBuffer {
            portal,
            match_bits,
            data: Some(data.clone()),
        });
        let put = bulk.put.iter().map(|&(portal, match_bits, _)| BulkBuffer {
            portal,
            match_bits,
            data: None,
        });
        let bulk: Vec<_> = fetches.chain(put).collect();
        self.release.downgrade(req, !bulk.is_empty(), &mut msg);
        self.next_xid.insert(req.client, req.xid + 1);
        let (to, node) = (local_nid(step.to), self.clients.get_mut(&step.from).unwrap());
        node.send(to, req.portal, req.xid, &msg, bulk).await;
    }

    /// Repeats the last captured connect to the target if the client reconnected between captures.
    async fn ensure_connected(&mut self, label: &str, req: &Arc<Request>) {
        let handle = Value::Number(req.body.pb_handle.cookie);
        let known = self.comparer.ids.translate(Kind::Handle, &handle);
        let Err(UnknownId(what)) = known else { return };
        let Some(target) = target_of(req).filter(|_| !self.missing.contains_key(&what)) else {
            return;
        };
        let Some(before) = self.connects.get(&(req.client, target)) else {
            return;
        };
        let mut msg = before.msg.clone();
        let body = PtlrpcBody {
            pb_conn_cnt: req.body.pb_conn_cnt,
            ..before.body
        };
        msg.set_body(&body);
        self.release.downgrade(before, false, &mut msg);
        let (to, portal, xid) = (local_nid(before.server), before.portal, req.xid - 64);
        let node = self.clients.get_mut(&req.client).unwrap();
        node.send(to, portal, xid, &msg, Vec::new()).await;
        let (reply, _) = self.wait_for_reply(label, req.client, xid).await.unwrap();
        let body = reply.body().unwrap();
        assert_eq!(body.pb_status, 0, "{what}");
        self.comparer
            .ids
            .learn_pair(Kind::Handle, &handle, &Value::Number(body.pb_handle.cookie));
    }

    /// The request with this run's identifiers, and the data that the server fetches.
    fn rewrite_request(&mut self, req: &Request, bulk: &Bulk) -> Result<(Message, Vec<Bytes>), UnknownId> {
        let unknown = || UnknownId(format!("opcode {}", req.body.pb_opc));
        let format = req.format.ok_or_else(unknown)?;
        if let Some(target) = format.request_index(Rmf::Tgtuuid) {
            let target = req.msg.str(target).unwrap_or_default();
            if target.starts_with("testfs-MDT0001") {
                return Err(UnknownId("MDT0001".into()));
            }
        }
        if let Some(flag) = not_granted(req).or_else(|| self.release.reason_not_sent(req)) {
            return Err(UnknownId(flag.into()));
        }
        let mut msg = req.msg.clone();
        let leaves = fields(format.request, req.body.pb_opc, &req.msg.bufs);
        let locks = leaves.iter().filter(|(_, leaf)| leaf.name() == "lock_handle");
        let lock_known = { locks }.any(|(_, leaf)| {
            self.comparer
                .ids
                .translate(Kind::Handle, &leaf.value)
                .is_ok_and(|v| v.is_some())
        });
        for (i, leaf) in leaves {
            self.rewrite(req, &mut msg.bufs[i], &leaf, lock_known)?;
        }
        let mut fetched = bulk.fetched.clone();
        if let (wire::MDS_BATCH, Some(data)) = (req.body.pb_opc, fetched.first_mut()) {
            for leaf in batch_fields(req, data) {
                self.rewrite(req, data, &leaf, lock_known)?;
            }
        }
        self.translate_fid_in_key(&mut msg)?;
        Ok((msg, fetched))
    }

    /// Replaces a captured value by this run's. `lock_known`: this run knows a lock of the request.
    fn rewrite(
        &mut self,
        req: &Request,
        bytes: &mut Bytes,
        leaf: &Leaf,
        lock_known: bool,
    ) -> Result<(), UnknownId> {
        let enqueues = matches!(req.body.pb_opc, LDLM_ENQUEUE | wire::MDS_BATCH);
        let is_own_handle =
            leaf.path.starts_with("conn.") || (enqueues && leaf.path.ends_with("dlm_req.lock_handle[0]"));
        if let (true, Value::Number(handle)) = (is_own_handle, &leaf.value) {
            self.comparer.ids.map_to_itself(*handle);
        }
        let kind = kind(leaf);
        let allocate_fid = matches!(leaf.name(), "cr_fid2");
        if let (Kind::Identity, true, Value::Fid(fid)) = (kind, allocate_fid, &leaf.value) {
            self.comparer.ids.allocate_fid(*fid)?;
        }
        // The lock may have been granted between the captures: servers ignore its cancellation.
        let optional = leaf.name() == "lock_handle" && (lock_known || req.body.pb_opc != wire::LDLM_CANCEL);
        let value = match self.comparer.ids.translate(kind, &leaf.value) {
            Err(_) if optional => None,
            value => value?,
        };
        if let Some(value) = value {
            let mut buf = bytes.to_vec();
            buf[leaf.at.clone()].copy_from_slice(&bytes_of(&value, leaf.at.len()));
            *bytes = buf.into();
        }
        Ok(())
    }

    /// Waits for a request's reply and bulk; answers callbacks meanwhile. `None`: timeout.
    async fn wait_for_reply(&mut self, label: &str, client: Nid, xid: u64) -> Option<(Message, Bytes)> {
        loop {
            let node = self.clients.get_mut(&client).unwrap();
            let callback = tokio::select! {
                biased;
                msg = node.wait_for_reply(xid) => return Some((msg, node.take_bulk(xid))),
                callback = self.callbacks.recv() => callback.unwrap(),
                () = sleep(WAIT_MAX) => return None,
            };
            self.answer_callback(label, callback).await;
        }
    }

    /// Translates the FID after the key of a `fid2path` query.
    fn translate_fid_in_key(&self, msg: &mut Message) -> Result<(), UnknownId> {
        if !msg.str(1).is_ok_and(|key| key == wire::KEY_FID2PATH) {
            return Ok(());
        }
        let at = wire::round_up8(wire::KEY_FID2PATH.len() + 1);
        let mut key = msg.bufs[1].to_vec();
        let fid = self.comparer.ids.fid(Fid::from_bytes(&key[at..]).unwrap())?;
        key[at..at + Fid::SIZE].copy_from_slice(&fid.to_bytes());
        msg.bufs[1] = key.into();
        Ok(())
    }

    /// Waits for this run's reply to a request and compares it with the captured one.
    async fn compare_reply(&mut self, label: &str, req: &Arc<Request>, captured: &Message, bulk: Bulk) {
        let format = req.format.map_or(&[][..], |f| f.reply);
        if let Some(why) = self.skipped.remove(&(req.client, req.xid)) {
            for (_, leaf) in fields(format, req.body.pb_opc, &captured.bufs) {
                if let Err(UnknownId(what)) = self.comparer.ids.translate(kind(&leaf), &leaf.value) {
                    self.missing.entry(what).or_insert(why.clone());
                }
            }
            return;
        }
        if !self.clients[&req.client].waits_for(req.xid) {
            return;
        }
        let Some((msg, data)) = self.wait_for_reply(label, req.client, req.xid).await else {
            self.comparer
                .unexplained
                .push(format!("{label} {}: no reply within {WAIT_MAX:?}", name_of(req)));
            return;
        };
        if let Some(conn) = req.format.and_then(|f| f.request_index(Rmf::Conn)) {
            let conn = req.msg.get::<LustreHandle>(conn).unwrap().cookie;
            self.exports.insert(conn, msg.body().unwrap().pb_handle.cookie);
            let target = req.msg.str(1).unwrap().trim_end_matches("_UUID").to_owned();
            self.connects.insert((req.client, target), req.clone());
        }
        let name = name_of(req);
        if let Some(wrong) = self.release.unrequested_grant(req, &msg) {
            self.comparer.unexplained.push(format!("{label} {wrong}"));
        }
        let what = MessageId {
            label,
            name: &name,
            format,
            opcode: req.body.pb_opc,
        };
        self.comparer.tally(label).exchanges += 1;
        self.comparer.compare(&what, &captured.bufs, &msg.bufs);
        let put: Vec<u8> = bulk.put.iter().flat_map(|(_, _, data)| data.to_vec()).collect();
        if !put.is_empty() {
            self.comparer.compare_bulk(&what, &put.into(), &data);
        }
    }

    /// Waits for this run's counterpart of a captured callback.
    async fn compare_callback(&mut self, label: &str, req: &Arc<Request>) {
        let name = name_of(req);
        let is_req = |e: &ExpectedCallback| Arc::ptr_eq(&e.request, req);
        let arrived = |all: &[ExpectedCallback]| all.iter().any(|e| is_req(e) && e.arrived);
        let lock_handle = LdlmRequest::from_bytes(req.msg.buf(1)).unwrap().lock_handle[0];
        let missing = format!("missing.{lock_handle:#x}");
        // The servers may still revoke a lock that this run has requested.
        let lock_known = self
            .comparer
            .ids
            .translate(Kind::Handle, &Value::Number(lock_handle))
            .is_ok();
        if !lock_known && self.comparer.table.explains(label, &name, &missing) {
            self.comparer.tally(label).explained += 1;
            return;
        }
        while !arrived(&self.expected_callbacks) {
            let Ok(Some(callback)) = timeout(WAIT_MAX, self.callbacks.recv()).await else {
                self.comparer
                    .unexplained
                    .push(format!("{label} {name} {missing}"));
                return;
            };
            self.answer_callback(label, callback).await;
        }
    }

    /// Answers a callback with the captured reply. Answers an uncaptured callback like a client
    /// without dirty data.
    async fn answer_callback(&mut self, label: &str, callback: Callback) {
        let client = callback.client;
        let body = callback.msg.body().unwrap();
        let handles = LdlmRequest::handles(callback.msg.buf(1)).unwrap();
        let node = &self.clients[&client];
        let matches = |e: &&mut ExpectedCallback| {
            let req = &e.request;
            !e.arrived
                && req.server == client
                && req.body.pb_opc == body.pb_opc
                && handles.first() == Some(&e.lock_handle)
        };
        let Some(expected) = self.expected_callbacks.iter_mut().find(matches) else {
            let name = wire::format::opcode_name(body.pb_opc).unwrap_or_default();
            self.comparer
                .record_difference(label, name, "unexpected", &format!("{handles:x?}"));
            let reply = PtlrpcBody {
                pb_type: wire::PTL_RPC_MSG_REPLY,
                ..body
            };
            node.answer(&callback, &Message::new(&reply, [])).await;
            if body.pb_opc == wire::LDLM_BL_CALLBACK {
                let handle = callback.msg.get::<LdlmRequest>(1).unwrap().lock_handle[1];
                self.cancel(client, &callback, handle).await;
            }
            return;
        };
        expected.arrived = true;
        let req = expected.request.clone();
        if let Some(answer) = &expected.answer {
            node.answer(&callback, answer).await;
        }
        let name = name_of(&req);
        let format = req.format.map_or(&[][..], |f| f.request);
        let what = MessageId {
            label,
            name: &name,
            format,
            opcode: req.body.pb_opc,
        };
        self.comparer.tally(label).callbacks += 1;
        self.comparer.compare(&what, &req.msg.bufs, &callback.msg.bufs);
    }

    /// Cancels a lock after a blocking callback that the capture does not have.
    async fn cancel(&mut self, client: Nid, callback: &Callback, handle: u64) {
        let conn = callback.msg.body().unwrap().pb_handle.cookie;
        let body = PtlrpcBody {
            pb_handle: self.exports.get(&conn).copied().unwrap_or_default().into(),
            pb_type: wire::PTL_RPC_MSG_REQUEST,
            pb_version: wire::LUSTRE_DLM_VERSION | 3,
            pb_opc: wire::LDLM_CANCEL,
            pb_conn_cnt: 1,
            pb_timeout: 100,
            ..PtlrpcBody::default()
        };
        let req = LdlmRequest {
            lock_count: 1,
            lock_handle: [handle, 0],
            ..LdlmRequest::default()
        };
        let xid = self.next_xid.entry(client).or_default();
        *xid += 1;
        let xid = *xid;
        let msg = Message::new(&body, [req.to_bytes()]);
        let node = self.clients.get_mut(&client).unwrap();
        node.send(
            callback.from,
            wire::LDLM_CANCEL_REQUEST_PORTAL,
            xid,
            &msg,
            Vec::new(),
        )
        .await;
    }

    /// Prints the results and fails on unexpected ones.
    pub(crate) async fn end(self) {
        for (row, uses) in self.comparer.table.uses() {
            println!("{uses:6} {row}");
        }
        let counts = self.comparer.counts();
        print!("{counts}");
        for line in &self.comparer.unexplained {
            println!("{line}");
        }
        println!("{} differences without a reason", self.comparer.unexplained.len());
        for client in self.clients.into_values() {
            client.lnet.shutdown().await;
        }
        self.extra_files.end().await;
        self.servers.stop().await;
        assert!(self.comparer.unexplained.is_empty());
        compare_counts(self.release.name, &counts);
        // A run of an older release skips requests, so it may leave rows unused.
        if self.release.is_captured() {
            let unused = [self.comparer.table.unused(), self.not_played.unused()].concat();
            assert!(unused.is_empty(), "{unused:#?}");
        }
    }
}

/// The callbacks of a capture, with their answers.
fn expected_callbacks(steps: &[Step]) -> Vec<ExpectedCallback> {
    let mut out: Vec<ExpectedCallback> = Vec::new();
    for step in steps {
        match &step.kind {
            MessageKind::Request(req) if is_client(step.to) => {
                let handles = LdlmRequest::handles(req.msg.buf(1)).unwrap_or_default();
                let lock_handle = handles.first().copied().unwrap_or_default();
                out.push(ExpectedCallback {
                    request: req.clone(),
                    answer: None,
                    lock_handle,
                    arrived: false,
                });
            }
            MessageKind::Reply {
                request: Some(req),
                msg,
                ..
            } if is_client(step.from) => {
                if let Some(e) = out.iter_mut().find(|e| Arc::ptr_eq(&e.request, req)) {
                    e.answer = Some(msg.clone());
                }
            }
            _ => {}
        }
    }
    out
}

/// The target of a request on an established connection, if its portal determines it.
fn target_of(req: &Request) -> Option<String> {
    let index = u32::from(req.server == captured_nid(12));
    match req.portal {
        wire::OST_REQUEST_PORTAL | wire::OST_IO_PORTAL => Some(format!("{FSNAME}-OST{index:04x}")),
        wire::MDS_REQUEST_PORTAL | wire::MDS_READPAGE_PORTAL => Some(format!("{FSNAME}-MDT{index:04x}")),
        wire::MGS_REQUEST_PORTAL => Some("MGS".into()),
        _ => None,
    }
}

/// The requests that created files, with the OST of the first object.
fn osts_of_created_files(steps: &[Step]) -> HashMap<(Nid, u64), u64> {
    let mut files = HashMap::new();
    let mut osts_of_created_files = HashMap::new();
    for step in steps.iter().rev() {
        let MessageKind::Reply {
            request: Some(req),
            early: false,
            msg,
            ..
        } = &step.kind
        else {
            continue;
        };
        let Some(format) = req.format else { continue };
        let leaves: Vec<_> = fields(format.reply, req.body.pb_opc, &msg.bufs)
            .into_iter()
            .map(|(_, l)| l)
            .collect();
        let find = |end: &str| {
            leaves
                .iter()
                .find(|l| l.path.ends_with(end))
                .map(|l| l.value.clone())
        };
        if let (Some(Value::OstId(file)), Some(Value::Number(ost))) =
            (find(".lmm_oi"), find("lmm_objects[0].l_ost_idx"))
        {
            files.insert((file.oi_seq, file.oi_id), ost);
        }
        let created =
            matches!(find("lock_policy_res1"), Some(Value::Number(d)) if d & wire::DISP_OPEN_CREATE != 0);
        let rec_index = req
            .msg
            .bufs
            .get(3)
            .and_then(|_| format.request_index(Rmf::RecReint));
        if let (true, Some(rec)) = (created, rec_index) {
            let fid = req.msg.get::<wire::MdtRecCreate>(rec).unwrap().cr_fid2;
            if let Some(ost) = files.get(&(fid.f_seq, u64::from(fid.f_oid))) {
                osts_of_created_files.insert((req.client, req.xid), *ost);
            }
        }
    }
    osts_of_created_files
}

/// The fields of a batch that the server fetched in bulk.
fn batch_fields(req: &Request, data: &[u8]) -> Vec<Leaf> {
    let Ok(BatchBody::Bulk(sizes)) = BatchBody::parse(&req.msg.bytes(1), req.msg.buf(2)) else {
        return Vec::new();
    };
    let (mut begin, mut all) = (0, Vec::new());
    for size in sizes {
        let end = begin + size as usize;
        let shifted = |leaf: Leaf| Leaf {
            at: leaf.at.start + begin..leaf.at.end + begin,
            ..leaf
        };
        let found = leaves_of_batch("batch", &data[begin..end]).unwrap();
        all.extend(found.into_iter().map(shifted));
        begin = end;
    }
    all
}

/// The connect flag that clients need to send this request, if Nacre does not grant the flag.
fn not_granted(req: &Request) -> Option<&'static str> {
    match req.body.pb_opc {
        wire::OST_SET_INFO => Some("OBD_CONNECT_GRANT_SHRINK"),
        _ => None,
    }
}

/// Compares the counts with the stored counts, so that coverage does not shrink unnoticed.
/// `NACRE_WRITE_COUNTS=1` stores the counts of this run.
fn compare_counts(release: &str, counts: &str) {
    let path = format!(
        "{}/tests/it/captured_clients/counts{release}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("NACRE_WRITE_COUNTS").is_some() {
        std::fs::write(&path, counts).unwrap();
    }
    let before = std::fs::read_to_string(&path).unwrap();
    assert_eq!(counts, before, "the played exchanges differ from {path}");
}

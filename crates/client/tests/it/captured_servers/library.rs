//! The requests and replies of all captures: each exchange with its bulk, and each callback.
//!
//! The server's handle of the connection determines the target of an exchange. If no capture has
//! the connect, the portal and the server's NID determine the target.

use crate::captured_servers::key;
use bytes::Bytes;
use capture::trace::{MessageKind, Request};
use std::collections::HashMap;
use std::sync::Arc;
use testbase::captured;
use wire::format::Rqf;
use wire::{
    LDLM_CB_REQUEST_PORTAL, LdlmResId, LuSeqRange, LustreHandle, MdtBody, Message, Nid, OstBody, OstId,
    PtlrpcBody,
};

/// A captured request and its reply.
#[derive(Debug)]
pub struct Exchange {
    pub capture: Arc<str>,
    /// UUID of the target, such as `testfs-OST0001_UUID` or `MGS`.
    pub target: Arc<str>,
    pub request: Arc<Request>,
    pub format: &'static Rqf,
    pub reply: Message,
    pub reply_body: PtlrpcBody,
    /// Capture time of the reply, in microseconds since 1970.
    pub reply_us: u64,
    /// Bulk data, one piece for each memory descriptor.
    pub bulk: Vec<Bytes>,
    /// The keys of the exchange ([`key::keys`]).
    pub keys: Vec<String>,
}

/// A captured request of a server to a client.
#[derive(Debug)]
pub struct Callback {
    pub capture: Arc<str>,
    pub request: Arc<Request>,
    pub reply: Message,
}

impl Callback {
    /// The client's handle of the lock.
    pub fn cookie(&self) -> u64 {
        key::lock_request(&self.request.msg).map_or(0, |r| r.lock_handle[0])
    }
}

/// All exchanges of one captured client.
#[derive(Debug, Default)]
pub struct Library {
    pub exchanges: Vec<Exchange>,
    pub callbacks: Vec<Callback>,
    /// Indexes of the exchanges with each key, in order of time.
    by_key: HashMap<String, Vec<usize>>,
}

impl Library {
    /// Reads the exchanges of `client`. With `single_server`: from the captures of the file system
    /// with one server, whose names begin with `z`; otherwise from all other captures.
    pub fn read(client: Nid, single_server: bool) -> Library {
        let mut library = Library::default();
        let mut found = Vec::new();
        for label in captured::labels() {
            if label.starts_with('z') == single_server {
                found.extend(library.read_capture(client, &label.into()));
            }
        }
        library.add_with_targets(found);
        library.exchanges.sort_by_key(|e| e.request.time_us);
        for (i, exchange) in library.exchanges.iter().enumerate() {
            for key in &exchange.keys {
                library.by_key.entry(key.clone()).or_default().push(i);
            }
        }
        library
    }

    /// Indexes of the exchanges that have a key, in order of time.
    pub fn exchanges_with(&self, key: &str) -> &[usize] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// The time of the client's first request in a capture, in microseconds since 1970.
    pub fn begin_us(&self, capture: &str) -> u64 {
        let own = self.exchanges.iter().filter(|e| &*e.capture == capture);
        own.map(|e| e.request.time_us).min().unwrap_or(0)
    }

    /// Reads a capture: adds its callbacks, and returns its exchanges without targets and keys.
    fn read_capture(&mut self, client: Nid, label: &Arc<str>) -> Vec<Exchange> {
        let mut bulk: HashMap<u64, Vec<Bytes>> = HashMap::new();
        let mut found = Vec::new();
        for step in captured::steps(label) {
            match step.kind {
                MessageKind::Bulk(Some(request), data) if request.client == client && !data.is_empty() => {
                    bulk.entry(request.xid).or_default().push(data);
                }
                MessageKind::Reply {
                    body,
                    msg,
                    request: Some(request),
                    early: false,
                } => {
                    if request.portal == LDLM_CB_REQUEST_PORTAL && request.server == client {
                        self.callbacks.push(Callback {
                            capture: label.clone(),
                            request,
                            reply: msg,
                        });
                    } else if let Some(format) = request.format.filter(|_| request.client == client) {
                        found.push(Exchange {
                            capture: label.clone(),
                            target: "".into(),
                            bulk: bulk.remove(&request.xid).unwrap_or_default(),
                            request,
                            format,
                            reply: msg,
                            reply_body: *body,
                            reply_us: step.time_us,
                            keys: Vec::new(),
                        });
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Adds exchanges with their targets and keys.
    fn add_with_targets(&mut self, found: Vec<Exchange>) {
        let mut targets: HashMap<u64, Arc<str>> = HashMap::new();
        for e in &found {
            if e.format.name.ends_with("_CONNECT") && e.reply_body.pb_handle != LustreHandle::default() {
                let target = e.request.msg.str(1).unwrap_or_default();
                targets.insert(e.reply_body.pb_handle.cookie, target.into());
            }
        }
        for mut e in found {
            let by_handle = targets.get(&e.request.body.pb_handle.cookie).cloned();
            e.target = match e.format.name.ends_with("_CONNECT") {
                true => e.request.msg.str(1).unwrap_or_default().into(),
                false => by_handle.unwrap_or_else(|| key::target_by_portal(&e.request).into()),
            };
            let req = (&e.request.body, &e.request.msg);
            e.keys = key::keys(e.format, &e.target, req, Some(&e.reply));
            self.exchanges.push(e);
        }
    }

    /// The target of a connection's handle.
    pub fn target_of(&self, handle: u64) -> Option<Arc<str>> {
        let connect =
            |e: &&Exchange| e.format.name.ends_with("_CONNECT") && e.reply_body.pb_handle.cookie == handle;
        let exchange = self.exchanges.iter().find(connect);
        exchange.map(|e| e.target.clone())
    }

    /// The captured FLD range of a sequence.
    pub fn fld_range(&self, seq: u64) -> Option<LuSeqRange> {
        let answers = self.exchanges.iter().filter(|e| e.format.name == "RQF_FLD_QUERY");
        let mut ranges = answers.filter_map(|e| e.reply.get::<LuSeqRange>(1).ok());
        ranges
            .find(|r| (r.lsr_start..r.lsr_end).contains(&seq))
            .or_else(|| {
                // Without a captured query: the target that returned a file of the sequence.
                let holds = |e: &&Exchange| {
                    let body = e.reply.get::<MdtBody>(2).unwrap_or_default();
                    e.format.name == "RQF_LDLM_INTENT_GETATTR"
                        && body.mbo_fid1.f_seq == seq
                        && body.mbo_mode != 0
                };
                let target = &self.exchanges.iter().find(holds)?.target;
                let index = target.strip_prefix("testfs-MDT")?.get(..4)?;
                Some(LuSeqRange {
                    lsr_start: seq,
                    lsr_end: seq + 1,
                    lsr_index: u32::from_str_radix(index, 16).ok()?,
                    ..LuSeqRange::default()
                })
            })
    }

    /// The LVB of an object in a capture: the first LVB from the time `from_us` on, or else the
    /// last.
    pub fn captured_lvb(&self, res: &LdlmResId, capture: &str, from_us: u64) -> Option<Bytes> {
        let about = |e: &&Exchange| {
            let lock = key::lock_request(&e.request.msg).map(|r| r.lock_desc.l_resource.lr_name);
            *e.capture == *capture && e.format.name == "RQF_LDLM_ENQUEUE" && lock.as_ref() == Some(res)
        };
        let enqueues = || self.exchanges.iter().filter(about);
        let first = enqueues().find(|e| e.request.time_us >= from_us);
        first.or(enqueues().next_back()).map(|e| e.reply.bytes(2))
    }

    /// The data that a capture's reads returned for an object.
    pub fn object_data(&self, capture: &str, object: &OstId) -> Vec<u8> {
        let mut all = Vec::new();
        for e in self.exchanges.iter().filter(|e| *e.capture == *capture) {
            let oi = e.request.msg.get::<OstBody>(1).map(|b| b.oa.o_oi);
            if e.format.name != "RQF_OST_BRW_READ" || oi.as_ref() != Ok(object) {
                continue;
            }
            let inline = e.reply.bytes(2);
            let mut data = if e.bulk.is_empty() {
                inline.to_vec()
            } else {
                e.bulk.concat()
            };
            for range in key::ranges(&e.request.msg) {
                let rest = data.split_off(data.len().min((range.end - range.start) as usize));
                let end = range.start as usize + data.len();
                all.resize(all.len().max(end), 0);
                all[range.start as usize..end].copy_from_slice(&data);
                data = rest;
            }
        }
        all
    }
}

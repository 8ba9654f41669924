//! Parsers: a parsed input is rebuilt, and the rebuilt bytes must parse to the same value.

use bytes::Bytes;
use wire::{
    Fid, KsockHelloMsgNid4, LnetAcceptorConnreq, LuSeqRange, Message, Nid, WireStruct,
    acl::PosixAcl,
    batch::{self, BatchBody},
    config::Config,
    dirpage::DirPage,
    format,
    frame::{FrameHead, PingReply},
    linkea::LinkEa,
    llog_file::{Log, records},
    striping::{LmvLayout, LovLayout},
};

/// The beginning of a socklnd connection and its frames: acceptor request, hello, frame heads.
pub fn socklnd(bytes: &[u8]) {
    if let Ok(request) = LnetAcceptorConnreq::from_bytes(bytes) {
        let _ = request.check();
        assert_eq!(request.to_bytes(), bytes[..LnetAcceptorConnreq::SIZE]);
    }
    if let Ok(hello) = KsockHelloMsgNid4::from_bytes(bytes) {
        let _ = hello.check();
        assert_eq!(hello.to_bytes(), bytes[..KsockHelloMsgNid4::SIZE]);
    }
    let mut rest = bytes;
    while let Ok(Some((head, len))) = FrameHead::parse(rest) {
        let built = head.build();
        assert_eq!(FrameHead::parse(&built), Ok(Some((head, len))));
        rest = rest.get(len + head.payload_len()..).unwrap_or_default();
    }
}

/// LNet: ping replies, NIDs as text, and complete captures.
pub fn lnet(bytes: &[u8]) {
    if let Ok(ping) = PingReply::parse(bytes) {
        assert_eq!(PingReply::parse(&ping.build()), Ok(ping));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(nid) = text.parse::<Nid>()
    {
        assert_eq!(nid.to_string().parse::<Nid>().as_ref(), Ok(&nid));
    }
    // A capture is untrusted: it may have segments in any order, and gaps.
    if let Ok(capture) = capture::pcap::Capture::open(Bytes::copy_from_slice(bytes)) {
        let (mut flows, mut tracker) = (capture::flow::Flows::new(), capture::trace::Tracker::new());
        for event in capture.flat_map(|segment| flows.feed(segment)) {
            tracker.classify(&event);
        }
    }
}

/// An RPC message and its buffers, by the format of its opcode.
pub fn ptlrpc(bytes: &[u8]) {
    let Ok(msg) = Message::parse(&Bytes::copy_from_slice(bytes)) else {
        return;
    };
    assert_eq!(Message::parse(&msg.build()).as_ref(), Ok(&msg));
    let Ok(body) = msg.body() else { return };
    for buf in &msg.bufs {
        let _ = BatchBody::parse(buf, msg.buf(2));
        for all in [batch::parse_requests(buf), batch::parse_replies(buf)]
            .into_iter()
            .flatten()
        {
            assert_eq!(batch::parse_requests(&batch::build_requests(&all)), Ok(all));
        }
    }
    let Some(format) = format::of_request(body.pb_opc, &msg) else {
        return;
    };
    for (buf, rmf) in msg
        .bufs
        .iter()
        .zip(format.request)
        .chain(msg.bufs.iter().zip(format.reply))
    {
        let codec = rmf.codec();
        if let Ok(built) = codec.rebuild(buf) {
            assert_eq!(codec.rebuild(&built).as_ref(), Ok(&built), "{}", rmf.name());
        }
        let _ = codec.show(buf);
    }
}

/// Configuration logs: whole files, and sequences of records as a server sends them.
pub fn llog(bytes: &[u8]) {
    for record in records(bytes) {
        let Ok(record) = record else { break };
        if let Ok(config) = Config::parse(record.data) {
            assert_eq!(Config::parse(&config.build()).as_ref(), Ok(&config));
            config.as_marker();
        }
    }
    if let Ok(mut log) = Log::parse(bytes) {
        let again = Log::parse(&log.build());
        assert!(again.is_ok_and(|again| again.build() == log.build()));
        let first = log
            .live()
            .filter_map(Result::ok)
            .map(|r| (r.index, r.data.len()))
            .next();
        if let Some((index, len)) = first {
            assert!(log.rewrite(index, &vec![0; len]));
            log.cancel(index);
        }
        if let Ok(index) = log.append(wire::OBD_CFG_REC, 0, b"sixteen bytes do") {
            let again = Log::parse(&log.build()).expect("a log after an append");
            let last = again.live().last().expect("a record").expect("a complete record");
            assert_eq!((last.index, last.data), (index, &b"sixteen bytes do"[..]));
        }
    }
}

/// The layout of a file as the MDT uses it: requested, stored, replayed and swapped.
fn file_layout(bytes: &[u8]) {
    use mdt::layout::{self, LayoutRequest, composite};
    if let Ok(Some(wanted)) = LayoutRequest::parse(bytes)
        && let Ok(default) = wanted.to_default_layout()
    {
        // A default layout that the MDT stores is a valid request.
        assert!(LayoutRequest::parse(&default).is_ok());
        if let LayoutRequest::Composite(components) = wanted {
            let all: Vec<_> = components
                .into_iter()
                .map(|c| c.with_defaults(&Default::default()))
                .collect();
            let new = composite::new_layout(Fid::ROOT, &all, 0);
            assert_eq!(composite::check(&new), Ok(()));
            for component in 0..all.len() {
                assert!(composite::request_of(&new, component, 4).is_some());
            }
        }
    }
    let _ = layout::replayed(bytes);
    let _ = layout::last_object(bytes, 5 << 20);
    let _ = layout::data_max(bytes);
    let _ = layout::swap((Fid::ROOT, bytes), (Fid::DOT_LUSTRE, bytes));
    if let Ok(Some(stored)) = layout::components(bytes)
        && composite::check(&stored).is_ok()
    {
        let missing = composite::missing(&stored, &(0..composite::EOF));
        assert!(missing.is_ok(), "{missing:?}");
        assert!(layout::placed_objects(bytes).is_ok());
    }
}

/// Inode attributes: layouts of files and directories, links, ACLs; and directory pages.
pub fn layout(bytes: &[u8]) {
    if let Ok(layout) = LovLayout::parse(bytes) {
        let built = layout.build();
        // Components may overlap in the input, but not after a rebuild, so compare rebuilt values.
        assert_eq!(LovLayout::parse(&built).map(|l| l.build()), Ok(built));
    }
    if let Ok(layout) = LmvLayout::parse(bytes) {
        assert_eq!(LmvLayout::parse(&layout.build()).as_ref(), Ok(&layout));
    }
    if let Ok(links) = LinkEa::parse(bytes) {
        assert!(LinkEa::parse(&links.build()).is_ok());
    }
    if let Ok(acl) = PosixAcl::parse(bytes) {
        assert_eq!(PosixAcl::parse(&acl.build()).as_ref(), Ok(&acl));
    }
    let _ = DirPage::parse_all(&Bytes::copy_from_slice(bytes));
    file_layout(bytes);
    if let Ok(range) = LuSeqRange::from_bytes(bytes) {
        assert_eq!(range.to_bytes(), bytes[..LuSeqRange::SIZE]);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(fid) = text.parse::<Fid>()
    {
        assert_eq!(fid.to_string().parse::<Fid>().as_ref(), Ok(&fid));
    }
}

//! The classes of the token bucket filter, from the text of `nrs_tbf_classes`.
//!
//! Clients choose the names of jobs, and a name may look like other fields. The parsers therefore
//! take all other fields first, most of them from the end, and the name of the job last.

use super::ThrottleCounts;

/// The fields of a class that can be the key of a row of `nacre top`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassKey<'a> {
    pub(crate) nid: Option<&'a str>,
    pub(crate) job: Option<&'a str>,
    pub(crate) uid: Option<u32>,
}

impl<'a> ClassKey<'a> {
    /// Parses a class such as `nid={10.0.0.7@tcp}&jobid={dd.0}&uid={0}&gid={0}&opcode={ost_read}`.
    pub(crate) fn parse(class: &'a str) -> ClassKey<'a> {
        let mut key = ClassKey::default();
        let mut rest = class;
        if let Some((nid, after)) = rest.strip_prefix("nid={").and_then(|r| r.split_once('}')) {
            key.nid = Some(nid);
            rest = after.trim_start_matches('&');
        }
        take_last(&mut rest, "opcode");
        take_last(&mut rest, "gid");
        key.uid = take_last(&mut rest, "uid").and_then(|uid| uid.parse().ok());
        let job = rest.strip_prefix("jobid={").and_then(|r| r.strip_suffix('}'));
        key.job = job.filter(|job| !job.is_empty());
        key
    }
}

/// Removes the last field of a class if it has this name, and returns its value.
fn take_last<'a>(class: &mut &'a str, name: &str) -> Option<&'a str> {
    let start = class.rfind(&format!("{name}={{"))?;
    let before = match class[..start].strip_suffix('&') {
        Some(before) => before,
        None if start == 0 => "",
        None => return None,
    };
    let value = class[start + name.len() + 2..].strip_suffix('}')?;
    if value.contains('}') {
        return None;
    }
    *class = before;
    Some(value)
}

/// The classes of a service that have throttled requests. Other classes have no counts to subtract.
pub(super) fn throttled(service: &str, text: &str) -> Vec<ThrottleCounts> {
    let mut cpt = "";
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("CPT ").and_then(|l| l.strip_suffix(':')) {
            cpt = number;
        } else if let Some(counts) = parse_line(line)
            && counts.throttled > 0
        {
            found.push(ThrottleCounts {
                service: service.to_owned(),
                cpt: cpt.to_owned(),
                ..counts
            });
        }
    }
    found
}

/// Parses `CLASS rule NAME requests N throttled N wait_usec N queued N`.
fn parse_line(line: &str) -> Option<ThrottleCounts> {
    let mut words = line.rsplitn(11, ' ');
    let mut number = |name: &str| -> Option<u64> {
        let number = words.next()?.parse().ok()?;
        (words.next()? == name).then_some(number)
    };
    let waiting = number("queued")?;
    let wait = number("wait_usec")?;
    let throttled = number("throttled")?;
    number("requests")?;
    let rule = words.next()?;
    if words.next()? != "rule" {
        return None;
    }
    Some(ThrottleCounts {
        service: String::new(),
        cpt: String::new(),
        class: words.next()?.to_owned(),
        rule: rule.to_owned(),
        throttled,
        wait,
        waiting,
    })
}

#[cfg(test)]
mod tests {
    use super::{ClassKey, throttled};

    #[test]
    fn classes_with_throttled_requests_are_read_by_partition() {
        let text = "CPT 0:\njobid={a b} rule slow requests 9 throttled 3 wait_usec 70 queued 2\n\
                    jobid={c} rule default requests 9 throttled 0 wait_usec 0 queued 0\n\
                    CPT 1:\nothers rule default requests 5 throttled 1 wait_usec 4 queued 0\n";
        let found = throttled("ost_io", text);
        assert_eq!(found.len(), 2, "{found:?}");
        let first = &found[0];
        assert_eq!((first.cpt.as_str(), first.class.as_str()), ("0", "jobid={a b}"));
        assert_eq!((first.rule.as_str(), first.throttled), ("slow", 3));
        assert_eq!((first.wait, first.waiting), (70, 2));
        assert_eq!((found[1].cpt.as_str(), found[1].class.as_str()), ("1", "others"));
    }

    #[test]
    fn name_of_a_job_cannot_forge_other_fields() {
        let class = "nid={10.0.0.7@tcp}&jobid={x}&uid={0}&uid={500}&gid={7}&opcode={ost_read}";
        let key = ClassKey::parse(class);
        assert_eq!(key.nid, Some("10.0.0.7@tcp"));
        assert_eq!((key.job, key.uid), (Some("x}&uid={0"), Some(500)));
        assert_eq!(ClassKey::parse("uid={501}").uid, Some(501));
        assert_eq!(ClassKey::parse("jobid={a.uid={3}}").job, Some("a.uid={3}"));
        assert_eq!(ClassKey::parse("jobid={}"), ClassKey::default());
        assert_eq!(ClassKey::parse("others"), ClassKey::default());
    }
}

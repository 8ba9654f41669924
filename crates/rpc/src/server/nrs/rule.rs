//! The rules of the token bucket filter, and the commands that change them (`nrs_tbf_rule`), in
//! Lustre's grammar:
//!
//! ```text
//! start NAME CONDITION [rate=N] [rank=OTHER]     change NAME [rate=N] [rank=OTHER]     stop NAME
//! CONDITION: EXPRESSION&EXPRESSION,...           & binds closer than ,
//! EXPRESSION: nid={NIDS} jobid={NAMES} uid={IDS} gid={IDS} opcode={NAMES}
//! ```
//!
//! Rules are tried in order, the newest first unless `rank` places one before another. The rule
//! `default` matches all requests.

use super::key::{Key, KeyKind};
use crate::opname;
use wire::NidList;

/// The name of the rule that matches all requests.
const DEFAULT: &str = "default";
/// Maximum length of a rule's name, in characters.
const NAME_MAX: usize = 15;
/// The highest rate, in requests per second.
const RATE_MAX: u64 = 999_999;
/// The maximum number of rules.
const RULES_MAX: usize = 256;

/// One rule.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// The text of the condition.
    pub(crate) conditions: String,
    /// The parsed condition: one of these conjunctions must match. Empty matches all requests.
    alternatives: Vec<Vec<Expression>>,
    /// Requests per second.
    pub(crate) rate: u64,
}

/// The rules of a policy, in the order of matching.
#[derive(Debug, Clone)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Debug, Clone)]
enum Expression {
    Nid(NidList),
    /// Patterns in which `*` matches any text.
    Jobid(Vec<String>),
    Uid(Vec<u32>),
    Gid(Vec<u32>),
    Opcode(Vec<u32>),
}

impl Rules {
    /// The default rule alone.
    pub(crate) fn new(rate: u64) -> Rules {
        let (name, conditions, alternatives) = (DEFAULT.to_owned(), "*".to_owned(), Vec::new());
        Rules(vec![Rule {
            name,
            conditions,
            alternatives,
            rate,
        }])
    }

    /// The index of the rule that matches a class.
    pub(crate) fn index_for(&self, key: &Key) -> usize {
        let holds = |conjunction: &Vec<Expression>| conjunction.iter().all(|e| e.matches_class(key));
        let matches = |r: &Rule| r.alternatives.is_empty() || r.alternatives.iter().any(holds);
        self.0.iter().position(matches).unwrap_or(self.0.len() - 1)
    }

    /// The rule at an index from [`Rules::index_for`].
    pub(crate) fn get(&self, index: usize) -> &Rule {
        &self.0[index.min(self.0.len() - 1)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Executes a command. `kind` is the field that distinguishes the policy's classes; `rate` is
    /// the default of a new rule.
    pub(crate) fn execute(&mut self, text: &str, kind: KeyKind, rate: u64) -> Result<(), String> {
        let (verb, rest) = split_first_word(text);
        let (name, rest) = split_first_word(rest);
        let is_valid = name.len() <= NAME_MAX && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !matches!(verb, "start" | "change" | "stop") {
            return Err("expected start NAME CONDITION [rate=N] [rank=NAME], change NAME [rate=N] [rank=NAME], or stop NAME".into());
        }
        if name.is_empty() || !is_valid {
            return Err(format!(
                "'{name}' is not a rule name: expected letters, digits and _, at most {NAME_MAX}"
            ));
        }
        match verb {
            "start" => self.start(name, rest, kind, rate),
            "change" => self.change(name, rest),
            _ => self.stop(name, rest),
        }
    }

    fn start(&mut self, name: &str, rest: &str, kind: KeyKind, rate: u64) -> Result<(), String> {
        if self.position(name).is_ok() {
            return Err(format!(
                "rule '{name}' exists already: stop it first, or change its rate"
            ));
        }
        if self.0.len() >= RULES_MAX {
            return Err(format!("there are already {RULES_MAX} rules, the maximum"));
        }
        let end = rest
            .rfind('}')
            .ok_or("expected a condition such as nid={10.0.0.*@tcp}")?;
        let (conditions, options) = rest.split_at(end + 1);
        if !options.is_empty() && !options.starts_with(' ') {
            return Err(format!("expected a space after '}}', found '{options}'"));
        }
        let options = RuleOptions::parse(options)?;
        let alternatives = conditions
            .split(',')
            .map(|all| parse_conjunction(all, kind))
            .collect::<Result<_, _>>()?;
        let rule = Rule {
            name: name.to_owned(),
            conditions: conditions.trim().to_owned(),
            alternatives,
            rate: options.rate.unwrap_or(rate),
        };
        let index = options.rank.map_or(Ok(0), |other| self.position(&other))?;
        self.0.insert(index, rule);
        Ok(())
    }

    fn change(&mut self, name: &str, rest: &str) -> Result<(), String> {
        let options = RuleOptions::parse(rest)?;
        let index = self.position(name)?;
        if options.rate.is_none() && options.rank.is_none() {
            return Err("expected rate=N or rank=NAME".into());
        }
        if let Some(other) = options.rank {
            if name == DEFAULT || other == name {
                return Err(format!("rule '{name}' cannot be placed before '{other}'"));
            }
            self.position(&other)?;
            let rule = self.0.remove(index);
            let before = self.position(&other)?;
            self.0.insert(before, rule);
        }
        if let Some(rate) = options.rate {
            let index = self.position(name)?;
            self.0[index].rate = rate;
        }
        Ok(())
    }

    fn stop(&mut self, name: &str, rest: &str) -> Result<(), String> {
        if name == DEFAULT || !rest.trim().is_empty() {
            return Err("expected stop NAME, and a rule other than default".into());
        }
        let index = self.position(name)?;
        self.0.remove(index);
        Ok(())
    }

    fn position(&self, name: &str) -> Result<usize, String> {
        let index = self.0.iter().position(|r| r.name == name);
        index.ok_or_else(|| format!("there is no rule '{name}'"))
    }
}

/// The options after the condition.
#[derive(Default)]
struct RuleOptions {
    rate: Option<u64>,
    rank: Option<String>,
}

impl RuleOptions {
    fn parse(text: &str) -> Result<RuleOptions, String> {
        let mut options = RuleOptions::default();
        for pair in text.split_whitespace() {
            match pair.split_once('=') {
                Some(("rate", n)) => {
                    let n = n.parse().ok().filter(|n| (1..=RATE_MAX).contains(n));
                    options.rate =
                        Some(n.ok_or_else(|| format!("expected a rate from 1 to {RATE_MAX}: '{pair}'"))?);
                }
                Some(("rank", name)) => options.rank = Some(name.to_owned()),
                _ => return Err(format!("expected rate=N or rank=NAME, found '{pair}'")),
            }
        }
        Ok(options)
    }
}

fn parse_conjunction(text: &str, kind: KeyKind) -> Result<Vec<Expression>, String> {
    text.split('&')
        .map(|e| parse_expression(e.trim(), kind))
        .collect()
}

fn parse_expression(text: &str, kind: KeyKind) -> Result<Expression, String> {
    let malformed =
        || format!("expected an expression such as nid={{10.0.0.*@tcp}} or uid={{500 501}}, found '{text}'");
    let (field, set) = text.split_once('=').ok_or_else(malformed)?;
    let set = set
        .trim()
        .strip_prefix('{')
        .and_then(|s| s.strip_suffix('}'))
        .ok_or_else(malformed)?;
    let field = field.trim();
    if set.trim().is_empty() {
        return Err(format!("nothing between the braces: '{text}'"));
    }
    if !kind.allows_field(field) {
        return Err(format!(
            "field '{field}' is not available with this policy: expected {}",
            kind.fields()
        ));
    }
    let ids = || {
        let id = |t: &str| t.parse().map_err(|_| format!("'{t}' is not a number: '{text}'"));
        set.split_whitespace().map(id).collect::<Result<Vec<u32>, _>>()
    };
    Ok(match field {
        "nid" => Expression::Nid(set.parse().map_err(|e| format!("'{set}': {e}"))?),
        "jobid" => Expression::Jobid(set.split_whitespace().map(str::to_owned).collect()),
        "uid" => Expression::Uid(ids()?),
        "gid" => Expression::Gid(ids()?),
        _ => {
            let opcode = |t: &str| opname::opcode(t).ok_or_else(|| format!("'{t}' is not an operation"));
            Expression::Opcode(set.split_whitespace().map(opcode).collect::<Result<_, _>>()?)
        }
    })
}

impl Expression {
    fn matches_class(&self, key: &Key) -> bool {
        match self {
            Expression::Nid(nids) => key.nid.is_some_and(|nid| nids.has(nid)),
            Expression::Jobid(patterns) => key.jobid.as_ref().is_some_and(|j| {
                patterns
                    .iter()
                    .any(|p| matches_pattern(p.as_bytes(), j.as_str().as_bytes()))
            }),
            Expression::Uid(ids) => key.uid.is_some_and(|id| ids.contains(&id)),
            Expression::Gid(ids) => key.gid.is_some_and(|id| ids.contains(&id)),
            Expression::Opcode(opcodes) => key.opcode.is_some_and(|opc| opcodes.contains(&opc)),
        }
    }
}

/// Whether `name` matches a pattern in which `*` matches any text, including none.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern_at, mut name_at) = (0, 0);
    // After the last `*`: the positions in the pattern and in the name to try again from.
    let mut retry = None;
    while name_at < name.len() {
        if pattern.get(pattern_at) == Some(&b'*') {
            retry = Some((pattern_at + 1, name_at));
            pattern_at += 1;
        } else if pattern.get(pattern_at) == name.get(name_at) {
            (pattern_at, name_at) = (pattern_at + 1, name_at + 1);
        } else if let Some((after_star, matched)) = retry {
            retry = Some((after_star, matched + 1));
            (pattern_at, name_at) = (after_star, matched + 1);
        } else {
            return false;
        }
    }
    pattern[pattern_at..].iter().all(|&c| c == b'*')
}

/// The first word, and the rest of the text.
fn split_first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    match text.split_once(char::is_whitespace) {
        Some((first, rest)) => (first, rest.trim_start()),
        None => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Key, KeyKind, Rules, matches_pattern};
    use wire::Text;

    /// The name of the rule that matches a request.
    fn rule_for(rules: &Rules, nid: &str, jobid: &str, uid: u32, opcode: u32) -> String {
        let key = Key {
            nid: Some(nid.parse().unwrap()),
            jobid: Some(Text::truncated(jobid)),
            uid: Some(uid),
            gid: Some(uid),
            opcode: Some(opcode),
        };
        rules.get(rules.index_for(&key)).name.clone()
    }

    fn rules_from(commands: &[&str]) -> Rules {
        let mut rules = Rules::new(10_000);
        commands
            .iter()
            .for_each(|c| rules.execute(c, KeyKind::Generic, 10_000).unwrap());
        rules
    }

    #[test]
    fn the_newest_rule_that_matches_counts_and_rank_puts_one_before_another() {
        let rules = rules_from(&[
            "start nodes nid={192.168.1.[1-9]@tcp 10.0.0.1@tcp} rate=100",
            "start both nid={192.168.1.*@tcp}&jobid={dd.*},uid={500} rate=20",
            "start late opcode={mds_statfs} rate=5 rank=default",
        ]);
        assert_eq!(rule_for(&rules, "192.168.1.1@tcp", "dd.7", 0, 38), "both");
        assert_eq!(rule_for(&rules, "192.168.1.1@tcp", "cp.7", 0, 38), "nodes");
        assert_eq!(rule_for(&rules, "10.9.9.9@tcp", "cp.7", 500, 38), "both");
        assert_eq!(
            rule_for(&rules, "10.9.9.9@tcp", "cp.7", 0, wire::MDS_STATFS),
            "late"
        );
        assert_eq!(rule_for(&rules, "10.9.9.9@tcp", "cp.7", 0, 38), "default");
    }

    #[test]
    fn rules_change_and_stop() {
        let mut rules = rules_from(&["start a uid={1}", "start b uid={1} rate=2"]);
        let mut run = |c: &str| rules.execute(c, KeyKind::Generic, 10_000);
        run("change a rate=7 rank=b").unwrap();
        run("change default rate=3").unwrap();
        run("stop b").unwrap();
        let lines: Vec<_> = rules
            .iter()
            .map(|r| format!("{} {} {}", r.name, r.conditions, r.rate))
            .collect();
        assert_eq!(lines, ["a uid={1} 7", "default * 3"]);
    }

    #[test]
    fn errors_name_the_mistake() {
        for (command, why) in [
            ("begin a uid={1}", "expected start"),
            ("start a-b uid={1}", "'a-b' is not a rule name"),
            ("start a", "expected a condition"),
            ("start a uid={1}rate=5", "expected a space"),
            ("start a uid={1} rate=0", "rate from 1 to"),
            ("start a uid={1} speed=9", "found 'speed=9'"),
            ("start a uid={one}", "'one' is not a number"),
            ("start a uid={}", "nothing between"),
            ("start a uid 1}", "expected an expression"),
            ("start a nid={10.0.0.300@tcp}", "10.0.0.300"),
            ("start a opcode={dance}", "'dance' is not an operation"),
            ("start a shoe={44}", "'shoe' is not available"),
            ("start a uid={1} rank=b", "no rule 'b'"),
            ("start default uid={1}", "already"),
            ("change a rate=1", "no rule 'a'"),
            ("change default", "expected rate=N"),
            ("change default rank=default", "cannot be placed"),
            ("stop default", "other than default"),
        ] {
            let error = Rules::new(1).execute(command, KeyKind::Generic, 1).unwrap_err();
            assert!(error.contains(why), "{command}: {error}");
        }
        let error = Rules::new(1)
            .execute("start a uid={1}", KeyKind::Nid, 1)
            .unwrap_err();
        assert!(error.contains("expected nid"), "{error}");
    }

    #[test]
    fn a_star_matches_any_text() {
        assert!(
            matches_pattern(b"dd.*", b"dd.0")
                && matches_pattern(b"*", b"")
                && matches_pattern(b"*.10*", b"cp.1000")
        );
        assert!(!matches_pattern(b"dd.*", b"cdd.0") && !matches_pattern(b"", b"x"));
    }
}

//! Sizes: lines, tokens, fields, implementations, entries; assertions; documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::super::lex::{code_only, without_tests};
use super::super::walk::File;
use super::{Ratchets, shipped};

/// A struct with more named fields than this is counted.
const STRUCT_FIELDS_MAX: usize = 12;
/// A type whose own methods lie in more files than this is counted.
const IMPL_FILES_MAX: usize = 2;
/// Structs whose fields are counted by themselves, and with those of all that they own: a split alone lowers the first
/// count, not the second.
const NAMED_STRUCTS: [(&str, &str, &str); 2] = [
    ("journal", "Committer", "journal/src/write/committer/mod.rs"),
    ("daemon", "Connection", "daemon/src/ingest/framed/connection.rs"),
];
/// Names of constants that say neither of what nor in what unit.
const VAGUE_CONSTANTS: [&str; 6] = ["PATIENCE", "LOOK", "LOOKS", "MOST", "LEAST", "AT_MOST"];
/// Words that are no noun to search for, at the beginning of a doc comment.
const VAGUE_BEGINNINGS: [&str; 4] = ["What", "Whether", "How", "Who"];

pub(super) fn measure(files: &[File], all: &mut Ratchets) -> Result<()> {
    let (mut lines, mut tokens, mut asserts, mut vague_docs) = (0, 0, 0, 0);
    let mut shapes = BTreeMap::<&str, Shapes>::new();
    for file in files {
        let Some((name, _)) = shipped(file) else { continue };
        let code = without_tests(&code_only(&file.text));
        lines += lines_without_tests(&file.text, &code);
        asserts += release_asserts(&code);
        vague_docs += vague_doc_comments(&file.text);
        let parsed = parse(file)?;
        tokens += parsed.items.iter().filter(|item| !is_for_tests(item_attrs(item))).map(tokens_of).sum::<usize>();
        let shapes = shapes.entry(name).or_default();
        shapes.file = file.path.clone();
        shapes.visit_file(&parsed);
    }
    let impls = |shapes: &Shapes| shapes.spread().values().filter(|files| files.len() > IMPL_FILES_MAX).count();
    let large = |shapes: &Shapes| shapes.structs.values().filter(|one| one.fields > STRUCT_FIELDS_MAX).count();
    for (of, name, file) in NAMED_STRUCTS {
        let shapes = shapes.get(of).with_context(|| format!("there is no crate {of}"))?;
        let most = shapes.structs.get(&(name.to_owned(), file.into()));
        let most = most.with_context(|| format!("{file} has no struct {name}"))?.fields;
        all.at_most.insert(format!("fields of {name}"), most);
        all.at_most.insert(format!("fields of {name} and of all that it owns"), shapes.owned_fields(name, file));
    }
    let rust = || files.iter().filter(|file| file.ends_with(&[".rs"]));
    for (name, count) in [
        ("lines of shipped code", lines),
        ("tokens of shipped code", tokens),
        ("doc comments that begin with What, Whether, How or Who", vague_docs),
        ("structs of more than 12 fields", shapes.values().map(large).sum()),
        ("types whose methods lie in more than 2 files", shapes.values().map(impls).sum()),
        ("public append entries of the journal", shapes.get("journal").map_or(0, |shapes| shapes.append_entries)),
        ("constants without subject and unit", rust().map(vague_constants).sum()),
        ("tests that a plain run ignores", rust().map(|file| code_only(&file.text).matches("#[ignore").count()).sum()),
        ("decision records", files.iter().filter(|file| is_decision(&file.path)).count()),
        ("words of documentation", files.iter().filter(|file| file.ends_with(&[".md"])).map(words).sum()),
    ] {
        all.at_most.insert(name.to_owned(), count);
    }
    all.at_least.insert("assertions in a release".to_owned(), asserts);
    Ok(())
}

pub(super) fn parse(file: &File) -> Result<syn::File> {
    syn::parse_file(&file.text).with_context(|| format!("{} is not to be parsed", file.path.display()))
}

/// Whether an item is compiled for tests alone.
pub(super) fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg") && attr.parse_args::<syn::Path>().is_ok_and(|what| what.is_ident("test"))
    })
}

/// The attributes of an item that can be for tests alone.
pub(super) fn item_attrs(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

fn tokens_of(item: &syn::Item) -> usize {
    fn count(stream: TokenStream) -> usize {
        let one = |tree| match tree {
            TokenTree::Group(group) => 2 + count(group.stream()),
            _ => 1,
        };
        stream.into_iter().map(one).sum()
    }
    count(quote::ToTokens::to_token_stream(item))
}

/// Lines of a file that are not empty, without the modules of its tests.
fn lines_without_tests(text: &str, code: &str) -> usize {
    let tests = code_only(text).lines().zip(code.lines()).filter(|(all, shipped)| all != shipped).count();
    text.lines().filter(|line| !line.trim().is_empty()).count().saturating_sub(tests)
}

fn release_asserts(code: &str) -> usize {
    let is_own = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let at_compile_time = |at: usize| code[..at].lines().last().is_some_and(|line| line.contains("const"));
    let all = ["assert!", "assert_eq!", "assert_ne!"].into_iter().flat_map(|name| code.match_indices(name));
    all.filter(|(at, _)| is_own(*at) && !at_compile_time(*at)).count()
}

fn vague_doc_comments(text: &str) -> usize {
    let mut in_comment = false;
    let mut count = 0;
    for line in text.lines().map(str::trim_start) {
        let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        if let Some(doc) = doc.filter(|_| !in_comment) {
            let first = doc.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            count += usize::from(VAGUE_BEGINNINGS.contains(&first));
        }
        in_comment = line.starts_with("///") || line.starts_with("//!");
    }
    count
}

fn vague_constants(file: &File) -> usize {
    let code = code_only(&file.text);
    let named = |line: &&str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
        let line = line.strip_prefix("pub(super) ").unwrap_or(line);
        let name = line.strip_prefix("const ").and_then(|rest| rest.split(':').next());
        name.is_some_and(|name| VAGUE_CONSTANTS.contains(&name))
    };
    code.lines().filter(named).count()
}

fn is_decision(path: &Path) -> bool {
    let number = path
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    path.starts_with("docs/decisions") && number
}

fn words(file: &File) -> usize {
    file.text.split_whitespace().count()
}

/// A struct: the number of its fields, and the names in their types, without what is shared by an `Arc`.
struct Struct {
    fields: usize,
    owns: BTreeSet<String>,
}

/// Names in a type, without those in what is shared.
#[derive(Default)]
struct OwnedNames(BTreeSet<String>);

impl<'ast> Visit<'ast> for OwnedNames {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident != "Arc" && segment.ident != "Weak" {
            self.0.insert(segment.ident.to_string());
            visit::visit_path_segment(self, segment);
        }
    }
}

/// Structs and implementations of a crate.
#[derive(Default)]
struct Shapes {
    file: PathBuf,
    /// By name and file.
    structs: BTreeMap<(String, PathBuf), Struct>,
    /// Files that define a type of this name.
    definitions: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Types with methods of their own, and the file of these.
    impls: Vec<(String, PathBuf)>,
    append_entries: usize,
}

impl Shapes {
    fn define(&mut self, name: &syn::Ident) {
        self.definitions.entry(name.to_string()).or_default().insert(self.file.clone());
    }

    /// The file that defines a type of this name; of several the one that is nearest in the tree.
    fn definition(&self, name: &str, from: &Path) -> Option<&Path> {
        let common = |of: &&PathBuf| of.components().zip(from.components()).take_while(|(a, b)| a == b).count();
        Some(self.definitions.get(name)?.iter().max_by_key(common)?)
    }

    /// Fields of a struct, and of the crate's structs that it owns, directly or not; each struct once.
    fn owned_fields(&self, name: &str, file: &str) -> usize {
        let mut names = vec![(name.to_owned(), PathBuf::from(file))];
        let (mut seen, mut sum) = (BTreeSet::new(), 0);
        while let Some(key) = names.pop() {
            if let Some(one) = self.structs.get(&key).filter(|_| seen.insert(key.clone())) {
                sum += one.fields;
                let file = |name| Some(self.definition(name, &key.1)?.to_owned());
                names.extend(one.owns.iter().filter_map(|name| Some((name.clone(), file(name)?))));
            }
        }
        sum
    }

    /// For each type, by its name and the file of its definition: the files of its methods.
    fn spread(&self) -> BTreeMap<(&str, &Path), BTreeSet<&Path>> {
        let mut all = BTreeMap::<_, BTreeSet<&Path>>::new();
        for (name, file) in &self.impls {
            let of = self.definition(name, file).unwrap_or(file);
            all.entry((name.as_str(), of)).or_default().insert(file);
        }
        all
    }
}

impl<'ast> Visit<'ast> for Shapes {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(item_attrs(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(&item.ident);
        let mut owns = OwnedNames::default();
        owns.visit_fields(&item.fields);
        let key = (item.ident.to_string(), self.file.clone());
        self.structs.insert(key, Struct { fields: item.fields.len(), owns: owns.0 });
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(&item.ident);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) else { return };
        let Some(name) = of.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
        if name == "Journal" {
            let entries = item.items.iter().filter(|item| match item {
                syn::ImplItem::Fn(f) => {
                    f.sig.ident.to_string().starts_with("append") && matches!(f.vis, syn::Visibility::Public(_))
                }
                _ => false,
            });
            self.append_entries += entries.count();
        }
        self.impls.push((name, self.file.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_of_a_release_are_told_from_others() {
        let code =
            "fn f() { assert!(a); debug_assert!(b); assert_eq!(c, d); my_assert!(e); const _: () = assert!(f); }";
        assert_eq!(release_asserts(&code.replace("; ", ";\n")), 2);
    }

    #[test]
    fn a_doc_comment_is_judged_by_its_first_word() {
        assert_eq!(vague_doc_comments("/// What it is.\n/// Whether so.\nfn f() {}\n/// The end.\nfn g() {}\n"), 1);
        assert_eq!(vague_doc_comments("//! Whether.\n\n/// However it is.\n/// Who.\nfn f() {}\n"), 1);
    }

    #[test]
    fn lines_of_tests_and_empty_ones_do_not_count() {
        let text = "fn f() {}\n\n// why\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let code = without_tests(&code_only(text));
        assert_eq!(lines_without_tests(text, &code), 2);
    }

    #[test]
    fn constants_without_a_subject_are_found() {
        let text =
            "const PATIENCE: u8 = 1;\npub(crate) const LOOK: u8 = 1;\nconst DRAIN_PATIENCE: u8 = 1;\nlet x = MOST;\n";
        assert_eq!(vague_constants(&File::new("a.rs", text)), 2);
    }

    #[test]
    fn the_fields_of_parts_count_with_their_owner() {
        let mut shapes = Shapes::default();
        let text = "struct A { x: u8, b: B, shared: Arc<D> } struct B { y: Option<Box<C>>, of: Weak<D> }
            struct C { back: Vec<B>, z: u8 } struct D { u: u8 }";
        for (path, text) in [("a.rs", text), ("z/b.rs", "struct B { elsewhere: u8 }")] {
            shapes.file = path.into();
            shapes.visit_file(&syn::parse_file(text).expect("it is Rust"));
        }
        assert_eq!(shapes.owned_fields("A", "a.rs"), 3 + 2 + 2);
    }

    #[test]
    fn fields_and_files_of_types_are_counted() {
        let mut shapes = Shapes::default();
        for path in ["a.rs", "b.rs", "c.rs"] {
            shapes.file = path.into();
            let text =
                "struct A { x: u8, y: u8 }\nimpl A {}\nimpl Clone for B {}\n#[cfg(test)] mod tests { impl B {} }";
            shapes.visit_file(&syn::parse_file(text).expect("it is Rust"));
        }
        assert_eq!(shapes.structs[&("A".to_owned(), "a.rs".into())].fields, 2);
        assert_eq!(shapes.impls.len(), 3);
    }

    #[test]
    fn a_type_is_known_by_its_name_and_the_nearest_file_that_defines_it() {
        let mut shapes = Shapes::default();
        for (path, text) in [
            ("a/mod.rs", "struct A; impl A {}"),
            ("a/b.rs", "impl A {}"),
            ("a/c.rs", "impl A {}"),
            ("d/e.rs", "enum A {} impl A {}"),
        ] {
            shapes.file = path.into();
            shapes.visit_file(&syn::parse_file(text).expect("it is Rust"));
        }
        let files: Vec<_> = shapes.spread().values().map(BTreeSet::len).collect();
        assert_eq!(files, [3, 1]);
    }
}

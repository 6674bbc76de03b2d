"""The Python of a page becomes modules in which a type checker finds what is wrong, at the lines of the page."""

import ast

from tests.page_types import PACKAGE, modules_of

PAGE = """# Page

```python title="shop.py"
price = 40
```

```python
import shop
from shop import price

async with shop.opened() as store:
    print(price)
```

```python no-run
no python at all
```
"""


def test_the_files_and_the_rest_of_a_page_are_modules_that_keep_their_lines() -> None:
    modules = modules_of(PAGE, "page")
    assert sorted(modules) == ["page", "page__shop"]
    assert modules["page__shop"].splitlines()[3] == "price = 40"
    lines = modules["page"].splitlines()
    assert lines[8].strip() == f"import {PACKAGE}.page__shop as shop"
    assert lines[9].strip() == f"from {PACKAGE}.page__shop import price"
    assert "no python" not in modules["page"]
    assert all(ast.parse(text) for text in modules.values())

"""How user turns begin that the target is to finish: what people ask of an assistant, in many ways."""

from __future__ import annotations

_TASKS = """
Write a short story about
Write a poem about
Write an email to
Write a blog post about
Write a product description for
Write a persuasive essay on
Write a letter to
Write a speech about
Write a review of
Write a dialogue between
Draft a professional
Compose a
Create a detailed plan for
Create an outline for
Design a
Describe the process of
Describe a typical day of
Describe the main character
Explain the concept of
Explain how
Explain why
Explain the difference between
Explain in simple terms what
Give me a list of
Give me some tips on
Give three examples of
Suggest some
Recommend
List the steps to
List five
Name ten
What is the
What is the capital of
What are the main causes of
What are the benefits of
What are some good
What happens when
What would happen if
Who was the first
Who wrote
Where is
Where did
When did
When was
Why do
Why is
How do I
How can I
How does
How many
How much
How long does it take to
Is it true that
Can you explain
Can you help me
Could you write
I need help with
I want to learn
I am planning a trip to
I have a question about
Tell me about
Tell me a story
Imagine you are
Pretend that you are
Act as a
You are a
Suppose that
Compare
Discuss the
Analyze the
Evaluate the following
Identify the
Classify the following
Rewrite the following sentence
Rewrite the following paragraph in a formal tone:
Correct the grammar of this text:
Paraphrase the following text:
Summarize the following article:
Summarize the following text in three sentences:
Summarize:
Read the following passage and answer the question.
Here is a news report:
Based on the following documents, answer the question:
Context:
Article:
Extract the names of all people from this text:
Translate the following sentence into English:
Translate into English:
Translate German to English:
Translate the following text from French to English:
Answer the following question:
Solve the following problem:
Solve for x:
Calculate the
A train leaves
A store sells
A farmer has
John has
Maria bought
There are
If a
Let x be
Find the
Prove that
The sum of two numbers
Write a Python function that
Write a Python program to
Write a SQL query that
Write a JavaScript function
Implement a
Fix the bug in this code:
What does this code do?
What is the output of
How would you
Do you think
Please
Hello!
Hi,
Thanks.
"""
OPENINGS = tuple(line for line in _TASKS.splitlines() if line)
